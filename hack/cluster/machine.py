"""Processes, mounts and cgroups of this machine, and how to be rid of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from sim.processes import Process, wait_for


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of 127.0.0.1 that nothing listens on right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


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
