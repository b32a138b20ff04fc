"""Traces of a kubelet outside its own directories, and their removal."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
