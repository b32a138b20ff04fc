"""Processes of the node that have NVIDIA's device nodes open, as the host's /proc shows them.

NVML names only processes with a CUDA context that are visible in the pid namespace of the caller.
DCGM and other monitors have no CUDA context, and keep instances in use all the same
(NVIDIA/DCGM#276). Which pods run, the node's cgroups tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from kubeletplugin.host.nodes import ANY_NODE
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import RELEASE_DCGM

MONITORS = frozenset({"dcgm-exporter", "nv-hostengine"})
"""Programs of DCGM, which keep compute instances in use by their handles (NVIDIA/DCGM#276, #95).

A compute instance with any other subscriber cannot be deleted (open-gpu-kernel-modules
595.45.04, kernel_mig_manager.c:5627: the reference count of its share).
"""

Holders = Callable[[str, Collection[int]], str]
"""Function that names, in a text for an error that begins with "; ", the holders of a GPU or slice.

Called with the UUID of the GPU and the ids of the processes that NVML names. The text is empty if
nothing is known.
"""
_MIG_MANAGER = frozenset({"nvidia-mig-mana", "nvidia-mig-part", "reconfigure-mig"})
"""Names of mig-manager's processes and their children (mig-parted, cmd, deployments/container)."""
_SYS_ADMIN = 1 << 21
_OWN_NAMESPACE = Path("/proc/self/ns/pid")
INITIAL_NAMESPACE = "pid:[4026531836]"
"""Link of the kernel's first pid namespace, whose number is fixed (PROC_PID_INIT_INO)."""

_CGROUPS, _LOGS = "/sys/fs/cgroup", "/var/log/pods"
_POD = re.compile(r"pod([0-9a-f_-]{32,36})(?:\.slice)?")
"""End of the name of a pod's cgroup, with the pod's UID; systemd has ``_`` for ``-`` in it."""


def sees_processes(roots: Roots) -> bool:
    """True if NVML can name all processes of the node; False also if that is not known.

    NVML can do so for a process in the pid namespace of the node's first process. In any other
    namespace its lists of processes are empty or not complete.
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
    """Pid and name of every process that a /proc shows; the kernel cuts names after 15 bytes.

    A process can choose any bytes as its name: unprintable ones are replaced by ``?``.
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
    """Paths of NVIDIA's device nodes that a process has open; empty if they may not be read."""
    try:
        links = [str(fd.readlink()) for fd in (proc / pid / "fd").iterdir()]
    except OSError:
        return []
    return [link for link in links if link.startswith(ANY_NODE)]


def openers(roots: Roots, minor: int) -> tuple[str, ...]:
    """Other processes that have the GPU with this minor number open, each as ``name (pid)``."""
    proc, own = roots.on_host("/proc"), str(os.getpid())
    return tuple(
        sorted(
            f"{name} ({pid})"
            for pid, name in named_processes(proc)
            if pid != own and f"{ANY_NODE}{minor}" in open_nodes(proc, pid)
        )
    )


def runs_mig_manager(roots: Roots) -> bool:
    """True if mig-manager's program runs on the node, even if the API server has no pod of it.

    Only processes that could change MIG count, as any pod can give a process this name.
    """
    proc = roots.on_host("/proc")
    return any(
        name in _MIG_MANAGER and _may_administer(proc / pid) for pid, name in named_processes(proc)
    )


def _may_administer(process: Path) -> bool:
    """True if a process is root with CAP_SYS_ADMIN, as in a privileged container."""
    return all(privileges(process))


def privileges(process: Path) -> tuple[bool, bool]:
    """Two answers about a process of a /proc: it runs as root, and it has CAP_SYS_ADMIN."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return False, False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    real = fields.get("Uid", "").split("\t")[0]
    return real == "0", bool(int(fields.get("CapEff", "0"), 16) & _SYS_ADMIN)


def nobody_seen(gpu: str, pids: Collection[int] = ()) -> str:  # noqa: ARG001 - a ``Holders``
    """Empty text: a ``Holders`` that knows no processes."""
    return ""


def holders(roots: Roots, minor: int, pids: Collection[int] = ()) -> str:
    """Text of a ``Holders`` about the GPU with this minor number."""
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
    """True if DCGM is among ``found``, programs as ``openers`` returns them."""
    return any(opener.partition(" ")[0] in MONITORS for opener in found)


def logged_pods(roots: Roots) -> dict[str, tuple[str, str]]:
    """Namespace and name of pods by UID, as kubelet has directories for their logs.

    Kubelet makes a pod's, named ``<namespace>_<name>_<uid>``, before its containers, and removes it
    some time after them. Empty also if the node's logs cannot be seen.
    """
    try:
        names = [folder.name.split("_") for folder in roots.on_host(_LOGS).iterdir()]
    except OSError:
        return {}
    return {name[2]: (name[0], name[1]) for name in names if len(name) == 3}  # noqa: PLR2004


def running_pods(roots: Roots, uids: Collection[str]) -> Iterator[str]:
    """Those of ``uids`` of whose pods a process runs, as the node's cgroups show."""
    left = set(uids)
    for folder, below, _ in os.walk(roots.on_host(_CGROUPS)) if left else ():
        ends = {name: _POD.search(name) for name in below}
        below[:] = [name for name, end in ends.items() if end is None]
        for name, end in ends.items():
            uid = end[1].replace("_", "-") if end is not None else ""
            if uid in left and _has_process(Path(folder, name)):
                left.discard(uid)
                yield uid


def _has_process(cgroup: Path) -> bool:
    """True if a cgroup or one below it has a process."""
    for folder, _, _ in os.walk(cgroup):
        try:
            if Path(folder, "cgroup.procs").read_text().strip():
                return True
        except OSError:  # gone meanwhile
            continue
    return False
