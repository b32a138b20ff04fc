"""Processes that never outlive who started them, the directory that they live in, and waiting."""

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
# Removes a directory once the input ends: whoever wrote to it is gone, and his children soon are.
_WATCH = """cat >/dev/null; for i in 1 2 3; do rm -rf "$1"; [ -e "$1" ] || exit; sleep 1; done"""
_TAIL_LINES = 30
_STOP_SECONDS = 10.0
_LONGEST_DIRECTORY = 50
"""A socket's path has 107 characters at most; the rest is for those below the directory."""


class ClusterError(Exception):
    """A part of a cluster ended, or did not get there in time; the message has its last words."""


class EndedError(Exception):
    """Somebody wants the cluster to end."""


T = TypeVar("T")


def wait_for(
    what: str,
    condition: Callable[[], T | None],
    *,
    timeout: float = 30.0,
    interval: float = 0.1,
    context: Callable[[], str] | None = None,
) -> T:
    """Asks `condition` until its answer is truthy, and returns that answer.

    `interval` is the longest pause between two questions; the first ones follow sooner.

    Raises:
        ClusterError: after `timeout` seconds, naming `what`, the last answer and `context()`.
    """
    deadline = time.monotonic() + timeout
    pause = interval / 5
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            more = f"\n{context()}" if context else ""
            raise ClusterError(f"no {what} after {timeout:g} s; last answer: {answer!r}{more}")
        time.sleep(pause)
        pause = min(2 * pause, interval)


class Process:
    """One program in a process group of its own, its output appended to a log file.

    Ctrl-C does not reach it, and the kernel kills it if we are killed. Starting again after a stop
    appends to the same log.

    Args:
        name: names the log file and appears in messages.
        argv: program and arguments.
        logs: directory of the log file.
        environment: the whole environment; None inherits ours.
        within: gives what to put before `argv` each time it is started.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        logs: Path,
        environment: Mapping[str, str] | None = None,
        within: Callable[[], Sequence[str]] = list,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = logs / f"{name}.log"
        self._environment = None if environment is None else dict(environment)
        self._within = within
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program; returns at once."""
        if self.running:
            raise ClusterError(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                [*self._within(), *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one prctl, no lock taken
            )

    @property
    def running(self) -> bool:
        """True if the program was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        return self._started().pid

    @property
    def cpu_seconds(self) -> float:
        """CPU time that the running program has used, without that of its children."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def status(self, field: str) -> int:
        """A number of its /proc/<pid>/status: ``VmRSS`` or ``VmHWM`` in KiB, ``Threads``."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))

    def assert_running(self) -> None:
        """Raises ClusterError with the end of the log if the program ended by itself."""
        if not self.running:
            raise ClusterError(self.epitaph())

    def epitaph(self) -> str:
        """Text about the end of the program, with the end of its log."""
        code = self._started().poll()
        how = f"was killed by signal {-code}" if code and code < 0 else f"exited with {code}"
        return f"{self.name} {how}. The end of its log:\n{self.tail()}"

    def tail(self, *, lines: int = _TAIL_LINES) -> str:
        """The last lines of the log, under a heading."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        kept = "\n".join(text.splitlines()[-lines:])
        return f"--- {self.name} ({self.log})\n{kept}"

    def stop(self, *, grace: float = _STOP_SECONDS) -> int:
        """Ends the group with SIGTERM, after `grace` seconds with SIGKILL; returns the status."""
        self.terminate()
        return self._end(grace)

    def kill(self) -> int:
        """Ends the group with SIGKILL: a crash, as seen by everyone else."""
        self._signal_group(signal.SIGKILL)
        return self._end(_STOP_SECONDS)

    def terminate(self) -> None:
        """Sends the group SIGTERM; returns at once."""
        self._signal_group(signal.SIGTERM)

    def _end(self, grace: float) -> int:
        if self._child is None:
            return 0
        try:
            self._child.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal_group(signal.SIGKILL)  # what the leader left in its group
        status = self._child.wait(_STOP_SECONDS)
        self._child = None
        return status

    def _signal_group(self, how: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, how)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise ClusterError(f"{self.name} was never started")
        return self._child


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """Owns a directory and the processes that live in it; a context manager.

    A directory has one owner at a time.

    Without ``directory`` a temporary one is made, and removed at the end. If this process is
    killed, the kernel kills the others too, and the shell that watches over the temporary directory
    removes it. ``ends`` says that somebody wants it to end.

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
        self.children: dict[str, Process] = {}
        self._waves: dict[str, int] = {}
        self._stack = contextlib.ExitStack()

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
            self._stack.enter_context(_owned(self.directory))
        else:
            self._stack.enter_context(_removed_at_the_end(self.directory))
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
        self._stack.close()

    def spawn(self, name: str, arguments: Sequence[str], *, wave: int = 1) -> Process:
        """Starts ``python <arguments>``, its output in ``logs/<name>.log``; wave 0 ends last."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, *arguments]
        child = Process(name, command, logs=self.directory / "logs", environment=environment)
        child.start()
        self.children[name], self._waves[name] = child, wave
        return child

    def ended(self) -> list[Process]:
        """The children that do not run any more."""
        return [child for child in self.children.values() if not child.running]

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
        for child in self.children.values():
            child.assert_running()

    def stop(self) -> None:
        """Ends all children, wave by wave, and waits for them; those that do not end are killed."""
        for wave in sorted({*self._waves.values()}, reverse=True):
            members = [child for name, child in self.children.items() if self._waves[name] == wave]
            for child in members:
                child.terminate()
            deadline = time.monotonic() + _STOP_SECONDS
            for child in members:
                child.stop(grace=max(0.0, deadline - time.monotonic()))


def _unmount_below(place: str) -> None:
    """Ends what processes mounted in a directory (with a slash at its end): that outlives them."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (point := line.split()[4]).startswith(place):
            subprocess.run(["/bin/umount", "--lazy", point], check=False)


@contextlib.contextmanager
def _removed_at_the_end(directory: Path) -> Iterator[None]:
    command = ["/bin/sh", "-c", _WATCH, "sh", str(directory)]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True
    ):
        yield


@contextlib.contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Makes the directory, and locks it inside the block."""
    elsewhere = "choose another directory with --dir."
    try:
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        lock = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used: {error.strerror}; {elsewhere}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                f"a simulated cluster runs in {directory} already. End that one, or {elsewhere}"
            ) from error
        yield
    finally:
        os.close(lock)


def _short_parent() -> str:
    parent = tempfile.gettempdir()
    fits = len(parent) + len("/mig-sim-12345678") <= _LONGEST_DIRECTORY
    return parent if fits else "/tmp"  # noqa: S108 - mkdtemp makes its own name
