"""Directories that the kernel module keeps for instances, as witnesses that one was not exchanged.

Each GPU instance and compute instance has a directory under /proc/driver/nvidia/capabilities as
long as it exists; when it is destroyed the directory goes, and the next instance gets another one
of the same name. An open descriptor stays with the old one, in which nothing is found any more. A
mark on the directory (its sticky bit, which means nothing there) goes with it: where it is found,
even by a new process, the directory is the one that was marked. That it is not found says something
only where the entry records that it was there, and the directory of the GPU, in which those of its
instances are, still has a mark: it may not have been allowed, and a driver might make directories
anew for a GPU that nobody had open, but then not those of instances alone.

The directories are the kernel's own: to hold one open takes no part of NVIDIA's driver in use, as
opening the ``access`` file in it would.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from kubeletplugin.gpus.ownership.belonging import Continuity
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journalfile import EntryKey

_log = logging.getLogger(__name__)
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_ALWAYS_THERE = "access"


class EntryWatch:
    """The directories of entries' instances. Thread-safe; no method raises.

    ``minor_of`` gives the minor number of a GPU by UUID, None if the node does not have it now.
    ``generation`` counts the openings of NVML: between two of them nobody may have had a GPU open.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        minor_of: Callable[[str], int | None],
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        self._roots = roots
        self._minor_of = minor_of
        self._generation = generation
        self._held_in = 0
        self._lock = threading.Lock()
        self._held: dict[EntryKey, dict[str, int]] = {}

    def begin(self, entry: Entry) -> bool:
        """Hold and mark the directories of instances that were just made; True if all have it."""
        self.end(entry.key)
        self.hold(entry)
        return self.mark(entry)

    def hold(self, entry: Entry) -> bool:
        """Hold the directories of an entry's instances, unless that is done; True if it was not."""
        self._renew()
        opened = False
        with self._lock:
            held = self._held.setdefault(entry.key, {})
            for name, path in self._places(entry):
                if name in held:
                    continue
                try:
                    held[name] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    opened = True
                except OSError as error:
                    _log.debug("%s is not watched: %s", path, error)
        return opened

    def mark(self, entry: Entry) -> bool:
        """Mark the directories of an entry's instances; True if all of them have the mark."""
        marked = [_mark(path) for _, path in self._places(entry)]
        return bool(marked) and all(marked)

    def mark_gpu(self, gpu: str, entries: Iterable[Entry]) -> None:
        """Mark the directory of a GPU, of which ``entries`` are all that have instances there."""
        folder = self._folder(gpu)
        if folder is not None and not _is_marked(folder) and all(map(self.mark, entries)):
            _mark(folder)

    def tell(self, entry: Entry) -> tuple[Continuity, Continuity]:
        """Evidence of the directories of an entry's GPU instance and compute instance."""
        self._renew()
        told = {name: self._tell(entry, name, path) for name, path in self._places(entry)}
        answers = [*told.values(), Continuity.UNKNOWN, Continuity.UNKNOWN]
        return answers[0], answers[1]

    def end(self, key: EntryKey) -> None:
        """Hold nothing of this entry any more."""
        with self._lock:
            held = self._held.pop(key, {})
        for descriptor in held.values():
            os.close(descriptor)

    def keep_only(self, keys: Collection[EntryKey]) -> None:
        """Hold nothing of entries but these."""
        with self._lock:
            gone = self._held.keys() - set(keys)
        for key in gone:
            self.end(key)

    def _renew(self) -> None:
        """Let go of what was held before NVML was opened the last time."""
        if self._generation() != self._held_in:
            self._held_in = self._generation()
            self.keep_only(())

    def _places(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Directories of an entry's instances, by name; as text, as all are looked at often."""
        parent = None if entry.gi_id is None else self._folder(entry.gpu)
        if parent is None:
            return
        name = f"gi{entry.gi_id}"
        folder = f"{parent}/{name}"
        yield name, folder
        if (compute := _compute_name(entry, folder)) is not None:
            yield f"{name}/{compute}", f"{folder}/{compute}"

    def _folder(self, gpu: str) -> str | None:
        """Directory in which those of a GPU's instances are."""
        minor = self._minor_of(gpu)
        return None if minor is None else f"{self._roots.host}{_CAPABILITIES}/gpu{minor}/mig"

    def _tell(self, entry: Entry, name: str, path: str) -> Continuity:
        with self._lock:
            descriptor = self._held.get(entry.key, {}).get(name)
            if descriptor is not None:
                return still_there(descriptor)
        marked = _is_marked(path)
        if marked:
            return Continuity.SAME
        # The mark of a compute instance is on record with its id.
        was_marked = entry.marked and (name == f"gi{entry.gi_id}" or entry.ci_id is not None)
        if marked is None or not was_marked:
            return Continuity.UNKNOWN
        parent = self._folder(entry.gpu)
        return Continuity.OTHER if parent and _is_marked(parent) else Continuity.UNKNOWN


def _is_marked(path: str) -> bool | None:
    """True if a directory has the mark; None if that cannot be told."""
    try:
        return bool(os.stat(path).st_mode & stat.S_ISVTX)  # noqa: PTH116
    except OSError:
        return None


def _mark(path: str) -> bool:
    """Mark a directory; True if it has the mark."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116
        if not mode & stat.S_ISVTX:
            os.chmod(path, mode | stat.S_ISVTX)  # noqa: PTH101 - as text, for each claim twice
            return bool(_is_marked(path))
    except OSError as error:
        _log.debug("%s cannot be marked: %s", path, error)
        return False
    return True


def _compute_name(entry: Entry, folder: str) -> str | None:
    """The name of the compute instance's directory, by its id or as the only one there is."""
    if entry.ci_id is not None:
        return f"ci{entry.ci_id}"
    try:
        names = [name for name in os.listdir(folder) if name.startswith("ci")]  # noqa: PTH208
    except OSError:
        return None
    return names[0] if len(names) == 1 else None


def still_there(descriptor: int, name: str = _ALWAYS_THERE) -> Continuity:
    """True if an open directory of /proc exists, by a file that every such directory has.

    One that was removed stays open and is empty, also when there is another one of its name.
    """
    try:
        os.stat(name, dir_fd=descriptor)
    except FileNotFoundError:
        return Continuity.OTHER
    except OSError:
        return Continuity.UNKNOWN
    return Continuity.SAME
