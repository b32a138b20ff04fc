"""The journal of slices made on the hardware, by claim: on disk before the hardware changes.

The journal is one JSON file with a version and a checksum, replaced atomically; the last durable
generation before it is kept as a second file. Intermediate steps are written without a sync to
disk: they survive the process but perhaps not the machine, and no instance survives the machine
either. Entries of which kubelet is told are synced. A file that cannot be read is renamed, never
overwritten, and the generation before it is used. Entries may be missing then, or if there is no
file; the journal records that until they have been found again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from api.decoding import decodable
from cdi.files import TEMPORARY_SUFFIX, sync_directory, write_durably, write_whole
from dra.gpu.names import DeviceNameError, parse_device
from kubeletplugin.errors import HostError
from kubeletplugin.journal.entries import Entry, EntryKey

_log = logging.getLogger(__name__)
VERSION = 1
_CHECKSUM = b',"checksum":"sha256:'


@decodable
class Contents(msgspec.Struct, frozen=True):
    """Content of a journal file.

    ``rebuild``: entries may be missing and are still to be found again. ``unadopted``: entries of
    ready slices of a layout may be missing.
    """

    version: int = VERSION
    generation: int = 0
    rebuild: bool = False
    unadopted: bool = False
    entries: tuple[Entry, ...] = ()


def encode(contents: Contents) -> bytes:
    return sealed(msgspec.json.encode(contents)[:-1])


def sealed(body: bytes) -> bytes:
    """Content of the file: ``body``, a JSON object without its closing brace, and the checksum."""
    return b'%b%b%b"}' % (body, _CHECKSUM, hashlib.sha256(body).hexdigest().encode())


def decode(data: bytes) -> Contents:
    """Read a journal from its bytes.

    Raises:
        ValueError: not a journal, of another version, or with a wrong checksum.
    """
    body, mark, _ = data.rpartition(_CHECKSUM)
    if not mark or sealed(body) != data:
        raise ValueError("no journal with the right checksum")
    try:
        contents = msgspec.json.decode(data, type=Contents)
        for entry in contents.entries:
            parse_device(entry.device)
    except (msgspec.DecodeError, DeviceNameError) as error:
        raise ValueError(f"it is no journal of this version: {error}") from error
    if contents.version != VERSION:
        raise ValueError(f"version {contents.version!r}; this program reads {VERSION}")
    return contents


class Journal:
    """The entries of this node. Thread-safe; a change is written when its method returns.

    The change is also synced to disk, except by :meth:`note`. Reading never waits for the disk.

    Every method that changes the journal raises HostError if the change could not be written; the
    entries are then as before. ``problems``: texts on files that could not be used. ``failure``:
    text on why the last write failed; empty if it succeeded.

    ``on_change``: called after each change except those of :meth:`note`, and when ``failure``
    changes. It is called without the journal's lock, so it may read the journal; the calling thread
    may hold other locks, such as that of a GPU, so it must not block.
    """

    def __init__(self, path: Path, *, on_change: Callable[[], None] | None = None) -> None:
        self._path, self._previous = path, previous(path)
        self._lock = threading.Lock()
        self._on_change = on_change
        self.failure = ""
        self._contents, self.problems = _load(path)
        self._durable = True
        self._entries: dict[EntryKey, Entry] = {e.key: e for e in self._contents.entries}

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were first written."""
        return tuple(self._entries.values())

    def get(self, entry: Entry) -> Entry | None:
        """The present entry with the key of ``entry``; None if there is none."""
        return self._entries.get(entry.key)

    def of_claim(self, uid: str) -> tuple[Entry, ...]:
        """The entries of one claim."""
        return tuple(e for e in self.entries() if e.claim.uid == uid)

    def of_gpu(self, gpu: str) -> tuple[Entry, ...]:
        """The entries that hold something of the GPU with this UUID; views are left out."""
        return tuple(e for e in self.entries() if e.gpu == gpu and not e.view)

    def has_mps(self, namespace: str) -> bool:
        """True if a claim of the namespace has a device here that an MPS daemon shares."""
        return any(e.mps is not None and e.claim.namespace == namespace for e in self.entries())

    @property
    def rebuild(self) -> bool:
        """True if the journal was lost, and entries of claims may still be missing."""
        return self._contents.rebuild

    @property
    def unadopted(self) -> bool:
        """True if the journal was lost, and entries of ready slices may still be missing."""
        return self._contents.unadopted

    def put(self, *entries: Entry) -> None:
        """Add or replace entries, in one write."""
        with self._changing():
            self._write(self._entries | {e.key: e for e in entries})

    def note(self, *entries: Entry) -> None:
        """Add or replace entries without a sync to disk, as an intermediate step.

        After a crash of the machine the instances are gone too. ``on_change`` is not called: it is
        called for the last step.
        """
        with self._changing(is_step=True):
            self._write(self._entries | {e.key: e for e in entries}, durably=False)

    def exchange(self, old: Entry, new: Entry) -> None:
        """Remove ``old`` and add ``new``, in one write."""
        with self._changing():
            self._write({k: e for k, e in self._entries.items() if k != old.key} | {new.key: new})

    def alter(self, old: Entry, new: Entry) -> bool:
        """Replace an entry if it still equals ``old``; returns False if it does not."""
        with self._changing():
            if self._entries.get(old.key) != old:
                return False
            if new != old:
                self._write(self._entries | {new.key: new})
            return True

    def remove(self, *entries: Entry) -> None:
        """Remove entries; those that are not there are ignored."""
        gone = {e.key for e in entries}
        with self._changing():
            if gone & self._entries.keys():
                self._write({k: e for k, e in self._entries.items() if k not in gone})

    def rebuilt(self) -> None:
        """Record that no entry is missing any more.

        To be called even if nothing was found: a node without a journal file counts as one that has
        lost its journal, and on such a node foreign instances may be taken for those of claims.
        """
        with self._changing():
            self._write(self._entries, rebuild=False)

    def adopted(self) -> None:
        """Record that no ready slice is missing any more."""
        with self._changing():
            self._write(self._entries, unadopted=False)

    def retry(self) -> None:
        """Write the entries again if the last write failed, to learn when writing works again."""
        with self._changing():
            if self.failure:
                try:
                    self._write(self._entries)
                except HostError as error:
                    _log.debug("%s", error)

    def sweep(self) -> None:
        """Remove half-written files of a killed process from the journal's directory.

        To be called at start only, by the owner of the directory.

        Raises:
            HostError: the directory cannot be read or written.
        """
        folder = self._path.parent
        try:
            with self._lock:
                for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"cannot sweep {folder}: {error.strerror or error}") from error

    @contextmanager
    def _changing(self, *, is_step: bool = False) -> Iterator[None]:
        """Hold the lock; then, without it, call ``on_change`` if something changed."""
        changed = False
        try:
            with self._lock:
                generation, failure = self._contents.generation, self.failure
                try:
                    yield
                finally:
                    changed = failure != self.failure or (
                        generation != self._contents.generation and not is_step
                    )
        finally:
            if changed and self._on_change is not None:
                self._on_change()

    def _write(
        self, entries: dict[EntryKey, Entry], *, durably: bool = True, **changes: bool
    ) -> None:
        contents = msgspec.structs.replace(
            self._contents,
            generation=self._contents.generation + 1,
            entries=tuple(entries.values()),
            **changes,
        )
        try:
            self._store(encode(contents), durably=durably)
        except OSError as error:
            self.failure = (
                f"cannot write the journal {self._path}: {error.strerror or error}; "
                "free space there or make it writable"
            )
            raise HostError(self.failure) from error
        self.failure = ""
        self._contents, self._entries = contents, entries

    def _store(self, data: bytes, *, durably: bool) -> None:
        if self._durable:
            _keep_previous(self._path, self._previous)
        write = write_durably if durably else write_whole
        self._durable = False
        try:
            write(self._path, data, mode=0o600)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write(self._path, data, mode=0o600)
        self._durable = durably


def previous(path: Path) -> Path:
    """Path of the generation before the current one."""
    return path.with_name(path.name + ".previous")


def _keep_previous(path: Path, before: Path) -> None:
    """Link the current file as ``before``, so that a readable journal exists at every moment."""
    link = f"{path}.link"
    try:
        try:
            os.link(path, link)
        except FileExistsError:  # left by a process that was killed
            os.unlink(link)  # noqa: PTH108 - as text, for each claim twice
            os.link(path, link)
    except FileNotFoundError:
        return
    os.replace(link, before)  # noqa: PTH105


def _load(path: Path) -> tuple[Contents, tuple[str, ...]]:
    """The newest generation that can be read, and texts on files that cannot be used."""
    problems: list[str] = []
    for candidate in (path, previous(path)):
        try:
            contents = decode(candidate.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{candidate} is not usable ({error}){_set_aside(candidate)}")
            continue
        if candidate == path:
            return contents, tuple(problems)
        # Entries that were written after this older generation are to be found again.
        problems.append(f"the generation before it is used: {candidate}")
        lost = msgspec.structs.replace(contents, rebuild=True, unadopted=True)
        return lost, tuple(problems)
    return Contents(rebuild=True, unadopted=True), tuple(problems)


def _set_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.corrupt")
    try:
        path.replace(aside)
        sync_directory(path.parent)
    except OSError as error:
        _log.error("cannot set %s aside: %s", path, error)
        return ""
    return f"; set aside as {aside}"
