"""Processes of the node that have device nodes of NVIDIA's open, as the host's /proc shows them.

NVML names those with a CUDA context. DCGM and other monitors have none, and keep instances in use
all the same (NVIDIA/DCGM#276).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kubeletplugin.host.roots import Roots

ANY_NODE = "/dev/nvidia"


def named_processes(proc: Path) -> Iterator[tuple[str, str]]:
    """Pid and name of every process that a /proc shows; names are cut after 15 characters."""
    try:
        pids = [p.name for p in proc.iterdir() if p.name.isdigit()]
    except OSError:
        return
    for pid in pids:
        try:
            yield pid, (proc / pid / "comm").read_text().strip()
        except OSError:
            continue


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
