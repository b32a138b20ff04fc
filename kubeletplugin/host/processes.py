"""Processes of the node that have device nodes of NVIDIA's open, as the host's /proc shows them.

NVML names those with a CUDA context, and only those with a number in its caller's pid namespace.
DCGM and other monitors have none, and keep instances in use all the same (NVIDIA/DCGM#276).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from kubeletplugin.host.nodes import ANY_NODE
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import RELEASE_DCGM

MONITORS = frozenset({"dcgm-exporter", "nv-hostengine"})
"""Programs of DCGM: handles that they keep of compute instances hold these (NVIDIA/DCGM#276, #95).

A compute instance with any other subscriber cannot be deleted (open-gpu-kernel-modules
595.45.04, kernel_mig_manager.c:5627: the reference count of its share).
"""

Holders = Callable[[str, Collection[int]], str]
"""Words for an error, beginning with "; ": who holds a GPU, or a slice with these processes in it.

Called with the UUID of the GPU and the ids of the processes that NVML names.
"""
_MIG_MANAGER = frozenset({"nvidia-mig-mana", "nvidia-mig-part", "reconfigure-mig"})
"""Programs of mig-manager and what it starts (mig-parted, cmd and deployments/container)."""
_SYS_ADMIN = 1 << 21
_OWN_NAMESPACE = Path("/proc/self/ns/pid")
INITIAL_NAMESPACE = "pid:[4026531836]"
"""The kernel's first pid namespace has this number always (PROC_PID_INIT_INO)."""


def sees_processes(roots: Roots) -> bool:
    """True if NVML can name all processes of the node; False also where that cannot be told.

    It can in the pid namespace of the node's first process; from any other, its lists of who uses a
    GPU are empty, or not complete.
    """
    try:
        own = str(_OWN_NAMESPACE.readlink())
    except OSError:
        return False
    try:
        return own == str(roots.on_host("/proc/1/ns/pid").readlink())
    except OSError:
        return own == INITIAL_NAMESPACE


def named_processes(proc: Path) -> Iterator[tuple[str, str]]:
    """Pid and name of every process that a /proc shows; names are cut after 15 bytes.

    A process names itself as it likes: what is no printable text is shown as ``?``.
    """
    try:
        pids = [p.name for p in proc.iterdir() if p.name.isdigit()]
    except OSError:
        return
    for pid in pids:
        try:
            name = (proc / pid / "comm").read_bytes().decode("ascii", errors="replace")
        except OSError:
            continue
        yield pid, "".join(c if " " <= c <= "~" else "?" for c in name.rstrip("\n"))


def open_nodes(proc: Path, pid: str) -> list[str]:
    """Paths of NVIDIA's device nodes that a process has open, as far as may be seen."""
    try:
        links = [str(fd.readlink()) for fd in (proc / pid / "fd").iterdir()]
    except OSError:
        return []
    return [link for link in links if link.startswith(ANY_NODE)]


def openers(roots: Roots, minor: int) -> tuple[str, ...]:
    """``name (pid)`` of each other process that has the GPU with this minor number open."""
    proc, own = roots.on_host("/proc"), str(os.getpid())
    return tuple(
        sorted(
            f"{name} ({pid})"
            for pid, name in named_processes(proc)
            if pid != own and f"{ANY_NODE}{minor}" in open_nodes(proc, pid)
        )
    )


def runs_mig_manager(roots: Roots) -> bool:
    """True if mig-manager's program runs on the node, whether the API server has its pod or not.

    Only processes that could change MIG count: whoever may run pods may call a process as he likes.
    """
    proc = roots.on_host("/proc")
    return any(
        name in _MIG_MANAGER and _may_administer(proc / pid) for pid, name in named_processes(proc)
    )


def _may_administer(process: Path) -> bool:
    """True for the host's root with CAP_SYS_ADMIN, which a container has if it is privileged."""
    return all(privileges(process))


def privileges(process: Path) -> tuple[bool, bool]:
    """True for each: a process of a /proc is root's, and has CAP_SYS_ADMIN."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return False, False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    real = fields.get("Uid", "").split("\t")[0]
    return real == "0", bool(int(fields.get("CapEff", "0"), 16) & _SYS_ADMIN)


def nobody_seen(gpu: str, pids: Collection[int] = ()) -> str:  # noqa: ARG001 - a ``Holders``
    """No words: nothing is known of processes."""
    return ""


def holders(roots: Roots, minor: int, pids: Collection[int] = ()) -> str:
    """Words for an error as ``Holders`` has them, of the GPU with this minor number."""
    if pids:
        names = dict(named_processes(roots.on_host("/proc")))
        known = [f"process {pid} is {names[str(pid)]}" for pid in pids if str(pid) in names]
        return "".join(f"; {text}" for text in known)
    found = openers(roots, minor)
    if not found:
        return (
            "; no program is seen that has the GPU open: most likely it is a monitor, such as the "
            f"node's dcgm-exporter, which keeps slices in use while it watches them; {RELEASE_DCGM}"
        )
    seen = f"; its GPU is open in {', '.join(found)}"
    return f"{seen}; {RELEASE_DCGM}" if has_monitor(found) else seen


def has_monitor(found: Collection[str]) -> bool:
    """True if DCGM is among programs as ``openers`` names them."""
    return any(opener.partition(" ")[0] in MONITORS for opener in found)
