"""A cgroup of our own, in every hierarchy, below which a kubelet puts its pods."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

from hack.cluster.waiting import wait_for

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
