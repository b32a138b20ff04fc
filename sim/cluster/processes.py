"""Child processes that never outlive their parent, each with a log of its own."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
# Removes a directory once the input ends: whoever wrote to it is gone, and his children soon are.
_WATCH = """cat >/dev/null; for i in 1 2 3; do rm -rf "$1"; [ -e "$1" ] || exit; sleep 1; done"""
_TAIL_LINES = 15
_STOP_SECONDS = 8.0
# What a socket's path below a node's directory takes, of the 107 characters that Linux allows.
_LONGEST_DIRECTORY = 50


class ClusterError(Exception):
    """The simulated cluster cannot start or go on; says why in words for people."""


class EndedError(Exception):
    """Somebody wants the cluster to end."""


@dataclass(slots=True)
class Child:
    """A process that was started. ``wave`` 0 is stopped last."""

    name: str
    arguments: tuple[str, ...]
    log: Path
    wave: int
    process: subprocess.Popen[bytes]

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self.process.poll()

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """The end of its log, indented."""
        with contextlib.suppress(OSError):
            text = self.log.read_text(errors="replace").splitlines()[-lines:]
            return "\n".join(f"    {line}" for line in text)
        return "    (no log)"

    def epitaph(self) -> str:
        """Text about the end of the process, with the end of its log."""
        code = self.exit_code
        how = f"was killed by signal {-code}" if code and code < 0 else f"exited with {code}"
        return f"{self.name} {how}. The end of its log:\n{self.tail()}"


class Supervisor:
    """Owns a directory and the processes that live in it; a context manager.

    A directory has one owner at a time.

    Without ``directory`` a temporary one is made, and removed at the end. Children get a process
    group each, so that Ctrl-C reaches this process alone, which stops them in order. If this
    process is killed, the kernel kills them too, and the shell that watches over the temporary
    directory removes it. ``ends`` says that somebody wants it to end.

    Raises:
        ClusterError: the directory's path is too long for the sockets below it, it cannot be
            written, or somebody else owns it.
    """

    def __init__(
        self, directory: Path | None = None, *, ends: Callable[[], bool] = lambda: False
    ) -> None:
        self._given = directory
        self._ends = ends
        self.directory = directory or Path()
        self.children: dict[str, Child] = {}
        self._lock: int | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._given is None:
            self.directory = Path(tempfile.mkdtemp(prefix="mig-sim-", dir=_short_parent()))
        else:
            self.directory = self._given.absolute()
        if len(str(self.directory)) > _LONGEST_DIRECTORY:
            raise ClusterError(
                f"{self.directory} is too long a path: sockets below it allow at most "
                f"{_LONGEST_DIRECTORY} characters. Choose a shorter one with --dir."
            )
        if self._given is not None:
            self._lock = _own(self.directory)
        else:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", self.directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        (self.directory / "logs").mkdir(exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        _unmount_below(f"{self.directory}/")
        if self._watch is not None:
            self._watch.communicate()
        if self._lock is not None:
            os.close(self._lock)

    def spawn(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        wave: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Starts ``python <arguments>`` with standard output and error in ``logs/<name>.log``."""
        log = self.directory / "logs" / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one prctl, no lock taken
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        child = Child(name, tuple(arguments), log, wave, process)
        self.children[name] = child
        return child

    def restart(self, child: Child) -> Child:
        """Starts an ended child again, with the same arguments and log."""
        return self.spawn(child.name, child.arguments, wave=child.wave)

    def ended(self) -> list[Child]:
        """The children that do not run any more."""
        return [child for child in self.children.values() if child.exit_code is not None]

    def check_ended(self) -> None:
        """Raises EndedError if somebody wants an end."""
        if self._ends():
            raise EndedError

    def check(self) -> None:
        """Sees that all run, and that nobody wants an end.

        Raises:
            ClusterError: one has ended; shows the end of its log.
            EndedError: somebody does.
        """
        self.check_ended()
        for child in self.ended():
            raise ClusterError(child.epitaph())

    def stop(self) -> None:
        """Ends all children, wave by wave, and waits for them; those that do not end are killed."""
        for wave in sorted({child.wave for child in self.children.values()}, reverse=True):
            members = [child for child in self.children.values() if child.wave == wave]
            for child in members:
                _signal(child, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_SECONDS
            for child in members:
                try:
                    child.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    _signal(child, signal.SIGKILL)
                    child.process.wait()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _unmount_below(place: str) -> None:
    """Ends what processes mounted in a directory (with a slash at its end): that outlives them."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (point := line.split()[4]).startswith(place):
            subprocess.run(["/bin/umount", "--lazy", point], check=False)


def _own(directory: Path) -> int:
    """Makes the directory and locks it; returns what holds the lock until it is closed."""
    try:
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(
            f"{directory} cannot be used: {error.strerror}. Choose another one with --dir."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ClusterError(
            f"a simulated cluster runs in {directory} already. End that one, or choose another "
            "directory with --dir."
        ) from error
    return lock


def _short_parent() -> str:
    parent = tempfile.gettempdir()
    fits = len(parent) + len("/mig-sim-12345678") <= _LONGEST_DIRECTORY
    return parent if fits else "/tmp"  # noqa: S108 - mkdtemp makes its own name


def _signal(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.process.send_signal(number)
