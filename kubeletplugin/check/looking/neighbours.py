"""Other programs on the node that use or manage its GPUs: processes and sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook
from kubeletplugin.host.openers import named_processes, open_nodes
from kubeletplugin.host.roots import Roots

_MANAGERS = {
    "nvidia-device-p": "NVIDIA's device plugin",
    "nvidia-mig-mana": "NVIDIA's mig-manager",
    "nvidia-mig-part": "nvidia-mig-parted",
    "gpu-kubelet-plu": "NVIDIA's DRA driver",
}
_OTHERS = {
    "nv-fabricmanage": "fabric manager",
    "nv-hostengine": "DCGM",
    "dcgm-exporter": "dcgm-exporter",
    "nvidia-persiste": "nvidia-persistenced",
    "nvidia-cuda-mps": "MPS",
}
_OF_KUBELET = {
    "device-plugins/nvidia-gpu.sock": "NVIDIA's device plugin",
    "plugins_registry/gpu.nvidia.com-reg.sock": "NVIDIA's DRA driver",
}
_SOCKETS = {
    "/run/nvidia-persistenced/socket": "nvidia-persistenced",
    "/run/nvidia-fabricmanager/socket": "fabric manager",
    "/tmp/nvidia-mps": "MPS",  # noqa: S108 - where it is by default
}
_MANAGING = frozenset(_MANAGERS.values())


def examine(notebook: Notebook, roots: Roots) -> None:
    """Other managers of the GPUs, and processes that hold device nodes of NVIDIA's."""
    names = _MANAGERS | _OTHERS
    processes = dict(named_processes(roots.on_host("/proc")))
    running = sorted({names[name] for name in processes.values() if name in names})
    sockets = sorted({who for path, who in _places(roots) if path.exists()})
    holders = sorted(set(_holders(roots.on_host("/proc"), processes)))
    notebook.fact(
        Item.NEIGHBOURS,
        f"processes: {', '.join(running) or 'none'}",
        f"sockets: {', '.join(sockets) or 'none'}",
        f"holders of /dev/nvidia*: {', '.join(holders) or 'none that can be seen'}",
    )
    managers = sorted(_MANAGING & {*running, *sockets})
    if managers:
        notebook.note(
            Item.NEIGHBOURS,
            f"{', '.join(managers)} may manage the same GPUs",
            "keep it off this node, or off these GPUs; see docs/migration.md",
        )
    else:
        found = ", ".join(sorted({*running, *sockets}))
        notebook.ok(Item.NEIGHBOURS, f"nobody else manages GPUs here{found and f'; {found}'}")


def _places(roots: Roots) -> Iterator[tuple[Path, str]]:
    """Sockets and whose they are; a container may see less of kubelet's directory itself."""
    for name, who in _OF_KUBELET.items():
        yield roots.kubelet / name, who
        yield roots.on_host(str(roots.kubelet / name)), who
    for path, who in _SOCKETS.items():
        yield roots.on_host(path), who


def _holders(proc: Path, processes: dict[str, str]) -> Iterator[str]:
    for pid, name in processes.items():
        if open_nodes(proc, pid):
            yield f"{name} ({pid})"
