"""Child processes that leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from hack.cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of 127.0.0.1 that nothing listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One program in a process group of its own, its output appended to a log file.

    The kernel kills it if we are killed. Starting again after a stop appends to
    the same log.

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

    def assert_running(self) -> None:
        """Raises ClusterError with the end of the log if the program ended by itself."""
        status = None if self._child is None else self._child.poll()
        if not self.running:
            raise ClusterError(f"{self.name} ended with status {status}\n{self.tail()}")

    def stop(self, *, grace: float = 10.0) -> int:
        """Ends the group with SIGTERM, after `grace` seconds with SIGKILL; returns the status."""
        return self._end(signal.SIGTERM, grace=grace)

    def kill(self) -> int:
        """Ends the group with SIGKILL: a crash, as seen by everyone else."""
        return self._end(signal.SIGKILL, grace=10.0)

    def tail(self, *, lines: int = 30) -> str:
        """The last lines of the log, under a heading."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        kept = "\n".join(text.splitlines()[-lines:])
        return f"--- {self.name} ({self.log})\n{kept}"

    def _end(self, how: signal.Signals, *, grace: float) -> int:
        if self._child is None:
            return 0
        self._signal_group(how)
        try:
            self._child.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal_group(signal.SIGKILL)  # what the leader left in its group
        status = self._child.wait(10)
        self._child = None
        return status

    def _signal_group(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._started().pid, how)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise ClusterError(f"{self.name} was never started")
        return self._child
