"""What a kubelet changes outside its own directories, and how to change it back."""

from __future__ import annotations

import contextlib
import shutil
import socket
from pathlib import Path

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Compiled into kubelet, whatever its --root-dir: it empties the directory when it starts."""

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
"""What kubelet sets (setupKernelTunables), for the whole machine."""

_PROC = Path("/proc/sys")


def other_kubelet_runs() -> bool:
    """Whether a kubelet of someone else serves the machine: ours would break its device plugins."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.connect(str(DEVICE_PLUGINS / "kubelet.sock"))
        return True
    return False


class HostState:
    """Remembers what a kubelet will change; made before the kubelet starts.

    Args:
        pod_logs: where our kubelet keeps its logs; links into it are ours.
    """

    def __init__(self, pod_logs: Path) -> None:
        self._pod_logs = pod_logs
        self._had_kubelet_directory = DEVICE_PLUGINS.parent.exists()
        self._sysctls = {name: (_PROC / name).read_text() for name in SYSCTLS}

    def restore(self) -> None:
        """Changes everything back, the kubelet being gone."""
        for name, value in self._sysctls.items():
            if (_PROC / name).read_text() != value:
                (_PROC / name).write_text(value)
        for link in LOG_LINKS.glob("*.log"):
            if link.is_symlink() and link.readlink().is_relative_to(self._pod_logs):
                link.unlink()
        shutil.rmtree(DEVICE_PLUGINS, ignore_errors=True)
        if not self._had_kubelet_directory:
            with contextlib.suppress(OSError):
                DEVICE_PLUGINS.parent.rmdir()
