"""The journal of slices made on the hardware, by claim: on disk before the hardware changes.

One file of JSON with a version and a checksum, replaced atomically; the last durable generation
before it stays beside it. Steps are noted: they outlive the process, and need not outlive the
machine, as no instance does. What kubelet is told of is durable. A journal that cannot be read is
set aside, never overwritten, and the one before it is used. Either way something may be missing
from it, which stands in the file itself until it has been found again.
"""

from __future__ import annotations

import fcntl
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
_WAIT_SECONDS = 0.2


@decodable
class Contents(msgspec.Struct, frozen=True):
    """Content of a journal file.

    ``rebuild`` is set while what was lost is still to be found again, ``unadopted`` while ready
    slices of a layout are.
    """

    version: int = VERSION
    generation: int = 0
    rebuild: bool = False
    unadopted: bool = False
    entries: tuple[Entry, ...] = ()


def encode(contents: Contents) -> bytes:
    return sealed(msgspec.json.encode(contents)[:-1])


def sealed(body: bytes) -> bytes:
    """A file of these bytes, which are a JSON object without its closing brace."""
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

    It is durable as well, but for :meth:`note`. Who reads waits for no disk: a change is read once
    it is written, and values that are read are replaced, never altered.

    Raises HostError from every change that could not be written; the entries are then as before.
    ``problems`` says in words which files could not be used, ``failure`` why the last change could
    not be written; it is empty when it was.

    ``on_change`` is called after each change that is no mere step, and when writing begins to fail,
    by the thread that made the change and without the journal's lock: it may ask the journal.
    Whoever made the change may hold other locks, that of a GPU for example, so that it must wait
    for nothing.
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
        """The entry of this claim and device as it is now."""
        return self._entries.get(entry.key)

    def of_claim(self, uid: str) -> tuple[Entry, ...]:
        """The entries of one claim."""
        return tuple(e for e in self.entries() if e.claim.uid == uid)

    def of_gpu(self, gpu: str) -> tuple[Entry, ...]:
        """The entries that hold something of one GPU, by UUID; views hold nothing."""
        return tuple(e for e in self.entries() if e.gpu == gpu and not e.view)

    def has_mps(self, namespace: str) -> bool:
        """True if a claim of the namespace has a device here that an MPS daemon shares."""
        return any(e.mps is not None and e.claim.namespace == namespace for e in self.entries())

    @property
    def rebuild(self) -> bool:
        """True if something may be missing that is still to be found again."""
        return self._contents.rebuild

    @property
    def unadopted(self) -> bool:
        """True if ready slices of a layout may be missing that are still to be found again."""
        return self._contents.unadopted

    def put(self, *entries: Entry) -> None:
        """Add or replace entries, all of them or none."""
        with self._changing():
            self._write(self._entries | {e.key: e for e in entries})

    def note(self, *entries: Entry) -> None:
        """Put entries whose instances do not outlive a reboot, so that these need not either.

        ``on_change`` hears of the step that ends what this one is part of.
        """
        with self._changing(is_step=True):
            self._write(self._entries | {e.key: e for e in entries}, durably=False)

    def exchange(self, old: Entry, new: Entry) -> None:
        """Forget one entry and put another, in one write."""
        with self._changing():
            self._write({k: e for k, e in self._entries.items() if k != old.key} | {new.key: new})

    def alter(self, old: Entry, new: Entry) -> bool:
        """Replace an entry if it is still as given; False if somebody changed it meanwhile."""
        with self._changing():
            if self._entries.get(old.key) != old:
                return False
            if new != old:
                self._write(self._entries | {new.key: new})
            return True

    def remove(self, *entries: Entry) -> None:
        """Forget entries; those that are not there are fine."""
        gone = {e.key for e in entries}
        with self._changing():
            if gone & self._entries.keys():
                self._write({k: e for k, e in self._entries.items() if k not in gone})

    def rebuilt(self) -> None:
        """Record that no entry is missing any more.

        Written even when nothing was found: a node without a journal is one that has lost it, where
        another's instance may be taken for a claim's.
        """
        with self._changing():
            self._write(self._entries, rebuild=False)

    def adopted(self) -> None:
        """Record that no ready slice is missing any more."""
        with self._changing():
            self._write(self._entries, unadopted=False)

    def retry(self) -> None:
        """Write again what could not be written, so that it is known when that is over."""
        with self._changing():
            if self.failure:
                try:
                    self._write(self._entries)
                except HostError as error:
                    _log.debug("%s", error)

    def sweep(self) -> None:
        """Remove what a process that was killed has left half-written in the journal's directory.

        Only at start, by the owner of the directory.

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
        """Hold the lock; the listener hears of a change once the lock is free again."""
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
    """Give the current file a second name, so that no moment is without a readable journal."""
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
    """The newest generation that can be read, and what is wrong with a newer one."""
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
        # Whatever came after the generation before it is to be found again.
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


@contextmanager
def exclusive(
    state: Path, stop: threading.Event, *, waits: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Own the node's state; a second process waits until the first is gone. False: told to stop.

    ``waits`` is called if it has to wait, once.

    Raises:
        HostError: the directory cannot be made or written.
    """
    told = False
    while not stop.is_set():
        with owned_at_once(state) as owned:
            if owned:
                yield True
                return
        if not told:
            _log.warning("another plugin owns %s; waiting until it ends", state)
            told = True
            waits()
        stop.wait(_WAIT_SECONDS)
    yield False


@contextmanager
def owned_at_once(state: Path) -> Iterator[bool]:
    """Own the node's state, if nobody else does at this moment.

    Raises:
        HostError: the directory cannot be made or written.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
        file = (state / "lock").open("w")
    except OSError as error:
        raise HostError(
            f"cannot use the state directory {state}: {error.strerror or error}"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
