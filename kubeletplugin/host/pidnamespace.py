"""The pid namespace of this process, compared with that of the node's first process.

NVML names only processes that have a number in its caller's pid namespace; from any other namespace
than the node's, its lists of who uses a GPU are empty, or not complete.
"""

from __future__ import annotations

from pathlib import Path

from kubeletplugin.host.roots import Roots

_OWN = Path("/proc/self/ns/pid")
_NODES = "/proc/1/ns/pid"
_INITIAL = "pid:[4026531836]"
"""The kernel's first one has this number always (PROC_PID_INIT_INO)."""


def sees_processes(roots: Roots) -> bool:
    """True if NVML can name all processes of the node; False also where that cannot be told."""
    try:
        own = str(_OWN.readlink())
    except OSError:
        return False
    try:
        return own == str(roots.on_host(_NODES).readlink())
    except OSError:
        return own == _INITIAL
