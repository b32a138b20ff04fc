"""Processes that have the driver open: files that they lock while they live."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import msgspec

from api.decoding import decodable
from sim.nvml.cabi import RefusedError, Return
from sim.nvml.state import Gpu, MachineState

_numbers = count()


@decodable
class Holder(msgspec.Struct, frozen=True):
    """A process that has the driver open, and the UUIDs of the GPUs that it holds."""

    pid: int
    name: str
    gpus: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name and number of the process."""
        return f"{self.name} (process {self.pid})"


class HeldError(RefusedError):
    """In use by another client; ``holders`` says by whom."""

    def __init__(self, what: str, holders: Iterable[str]) -> None:
        super().__init__(Return.IN_USE)
        self.holders = tuple(holders)
        self.args = (f"{what}: In use by another client: {', '.join(self.holders)}",)


class Client:
    """A process as a client of the machine in ``directory``, by default this. Not thread-safe."""

    def __init__(self, directory: Path, *, pid: int | None = None, name: str = "") -> None:
        self._pid = pid or os.getpid()
        self._name = name or Path(sys.argv[0]).name or "python"
        self._folder = directory / "clients"
        self._path = self._folder / f"{self._pid}-{next(_numbers)}"
        self._file: int | None = None

    def hold(self, gpus: Iterable[str]) -> None:
        """Has the driver open, and these GPUs."""
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            partial = self._path.with_name(f".{self._path.name}")
            self._file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write(gpus)
            partial.rename(self._path)
        else:
            self._write(gpus)

    def release(self) -> None:
        """Has nothing open."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            # Not only closed: a child that was forked meanwhile has it open as well.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None

    def is_me(self, path: Path) -> bool:
        """True if a client's file is this one's."""
        return path == self._path

    def _write(self, gpus: Iterable[str]) -> None:
        if self._file is not None:
            line = msgspec.json.encode(Holder(self._pid, self._name, tuple(sorted(gpus)))) + b"\n"
            os.pwrite(self._file, line, 0)  # what a longer line leaves behind it is not read


def clients(directory: Path, *, but: Client | None = None) -> list[Holder]:
    """All processes that have the driver of a machine open, but for one of them."""
    return list(_read(directory / "clients", but))


def require_free(directory: Path, gpu: Gpu) -> None:
    """Refuses while anybody holds a GPU.

    Raises:
        HeldError: names the holders.
    """
    holders = [str(c) for c in clients(directory) if gpu.uuid in c.gpus]
    if holders := [*holders, *_processes(gpu)]:
        raise HeldError(f"GPU {gpu.uuid} could not be reset", holders)


def require_unused(directory: Path, state: MachineState) -> None:
    """Refuses while anybody has the kernel module open.

    Raises:
        HeldError: names the holders.
    """
    holders = [str(c) for c in clients(directory)]
    if holders := [*holders, *(p for gpu in state.gpus for p in _processes(gpu))]:
        raise HeldError("the module nvidia could not be unloaded", holders)


def _read(folder: Path, but: Client | None) -> Iterator[Holder]:
    for path in sorted(folder.glob("[0-9]*")):
        if but is not None and but.is_me(path):
            continue
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield msgspec.json.decode(os.pread(file, 65536, 0).splitlines()[0], type=Holder)
        else:
            path.unlink(missing_ok=True)  # its process was killed
        finally:
            os.close(file)


def _processes(gpu: Gpu) -> list[str]:
    return [f"a {p.kind} process {p.pid}" for p in gpu.processes]
