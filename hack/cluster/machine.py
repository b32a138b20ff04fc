"""Processes, mounts and cgroups of this machine, and how to be rid of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from hack.cluster.waiting import ClusterError, wait_for

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


MOUNT = Path("/sys/fs/cgroup")
_UNIFIED_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


class Cgroup:
    """A top-level cgroup, so that kubelets of other test runs do not kill our pods.

    Works on both versions of cgroups; on version 1 it is one directory in each hierarchy.

    Args:
        name: a plain directory name.
    """

    def __init__(self, name: str) -> None:
        self.path = f"/{name}"
        unified = (MOUNT / "cgroup.controllers").exists()
        self.unified = unified
        mounts = [MOUNT] if unified else [each for each in sorted(MOUNT.iterdir()) if each.is_dir()]
        # On version 1 several names lead to one hierarchy (cpu -> cpu,cpuacct).
        self._directories = list(dict.fromkeys(mount.resolve() / name for mount in mounts))

    def create(self) -> None:
        """Makes the cgroup; on version 2 with the controllers that kubelet needs."""
        for directory in self._directories:
            directory.mkdir()
        if self.unified:
            for parent in (MOUNT, *self._directories):
                for controller in _UNIFIED_CONTROLLERS:
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")

    def directories(self) -> list[str]:
        """Directories in which it exists."""
        return [str(directory) for directory in self._directories if directory.exists()]

    def remove(self) -> None:
        """Kills whatever still runs in it and removes it with everything below."""
        wait_for(f"empty cgroup {self.path}", lambda: not self._kill_all(), timeout=10)
        for directory in self._directories:
            wait_for(f"removal of {directory}", partial(_remove_tree, directory))

    def _kill_all(self) -> list[int]:
        running: list[int] = []
        for directory in self._directories:
            for members in directory.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    running += [int(pid) for pid in members.read_text().split()]
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return running


def _remove_tree(directory: Path) -> bool:
    for path, _, _ in os.walk(directory, topdown=False):
        with contextlib.suppress(OSError):
            Path(path).rmdir()
    return not directory.exists()


class MountNamespace:
    """Mounts that only the processes started `within` it see; the machine's own go on to be seen.

    Args:
        name: names the log of the process that holds the namespace.
        shown: path, which exists, to the directory that is seen there.
        logs: directory for the log.
    """

    def __init__(self, name: str, *, shown: Mapping[Path, Path], logs: Path) -> None:
        mounts = [shlex.join(["mount", "--bind", str(to), str(at)]) for at, to in shown.items()]
        script = " && ".join([*mounts, "echo mounted", "exec sleep infinity"])
        self._holder = Process(
            name, ["unshare", "--mount", "--propagation", "slave", "sh", "-euc", script], logs=logs
        )
        self._identity = ""

    def open(self) -> None:
        """Makes the namespace.

        Raises:
            ClusterError: the mounts failed.
        """
        self._holder.log.unlink(missing_ok=True)
        self._holder.start()
        wait_for("mounts", self._mounted, timeout=30, interval=0.02)
        self._identity = _namespace(self._holder.pid)

    def within(self) -> list[str]:
        """Words before a command that make it run in the namespace."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    def close(self) -> None:
        """Ends the process that holds it; the namespace is gone with the last of its members."""
        self._holder.kill()

    def members(self) -> list[int]:
        """The processes in it, which ended ones have left."""
        pids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [pid for pid in pids if self._identity and _namespace(pid) == self._identity]

    def _mounted(self) -> bool:
        self._holder.assert_running()
        return "mounted" in self._holder.log.read_text()


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    return ""


COMPILED_IN = Path("/var/lib/kubelet")
"""Whatever its --root-dir, kubelet keeps sockets of device plugins below this."""

LOG_LINKS = Path("/var/log/containers")
"""Also compiled in: links to the log of every container."""

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Tunables that kubelet sets (setupKernelTunables), for the whole machine."""

_PROC = Path("/proc/sys")


class HostState:
    """Remembers what a kubelet will change; made before the kubelet starts.

    Args:
        pod_logs: where our kubelet keeps its logs; links into it are ours.
    """

    def __init__(self, pod_logs: Path) -> None:
        self._pod_logs = pod_logs
        self._had_directory = COMPILED_IN.exists()
        self._sysctls = {name: (_PROC / name).read_text() for name in SYSCTLS}

    def prepare(self) -> None:
        """Makes the directory over which each of our nodes mounts its own."""
        COMPILED_IN.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Changes everything back, the kubelet being gone."""
        for name, value in self._sysctls.items():
            if (_PROC / name).read_text() != value:
                (_PROC / name).write_text(value)
        for link in LOG_LINKS.glob("*.log"):
            if link.is_symlink() and link.readlink().is_relative_to(self._pod_logs):
                link.unlink()
        if not self._had_directory:
            with contextlib.suppress(OSError):  # others may have begun to use it
                COMPILED_IN.rmdir()
