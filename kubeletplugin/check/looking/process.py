"""This process: what it may do, and whether it sees the processes of the host."""

from __future__ import annotations

from pathlib import Path

from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook

_CAP_SYS_ADMIN = 21
_UNKNOWN = "unknown"
_OWN = Path("/proc")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's proc_ns.h


def examine(notebook: Notebook, *, proc: Path) -> None:
    """Permission to change MIG, and the pid namespace; ``proc`` is any /proc that has ``self``."""
    status = _status(proc)
    root = status.get("Uid", "").split()[1:2] == ["0"]
    admin = bool(int(status.get("CapEff", "0"), 16) >> _CAP_SYS_ADMIN & 1)
    notebook.fact(Item.PERMISSION, f"root={root}", f"CAP_SYS_ADMIN={admin}")
    if root and admin:
        notebook.ok(Item.PERMISSION, "root with CAP_SYS_ADMIN: may make instances")
    else:
        notebook.missing(
            Item.PERMISSION,
            "not root with CAP_SYS_ADMIN: NVML refuses to make instances",
            "run it as root, or in a privileged container as the chart's",
        )
    namespace, first = _link(proc / "self/ns/pid"), _link(proc / "1/ns/pid")
    notebook.fact(Item.PID_NAMESPACE, f"own {namespace}", f"of the first process {first}")
    # The first process of our own /proc is that of our own namespace, whichever that is.
    told = first != _UNKNOWN and proc != _OWN
    if namespace == (first if told else _INITIAL_PID_NAMESPACE):
        notebook.ok(Item.PID_NAMESPACE, "the host's: NVML can name processes")
    else:
        notebook.note(
            Item.PID_NAMESPACE,
            "not the host's: NVML names no process here, an empty list proves nothing",
            "hostPID: true in the pod",
        )


def _status(proc: Path) -> dict[str, str]:
    try:
        lines = (proc / "self/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return _UNKNOWN
