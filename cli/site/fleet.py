"""Many nodes in a few lines: what is free by profile, and a line for each node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cli.shell.output import Output, counted
from cli.site.drawing import gib, gpus_and_memory
from cli.site.occupancy import GpuView, NodeView
from dra.gpu.geometry import Profile

_WHOLE = "whole GPU"


@dataclass(slots=True)
class _Free:
    """Slices that could be made, and where."""

    slices: int = 0
    gpus: int = 0
    nodes: set[str] = field(default_factory=set)


def summarise(nodes: Sequence[NodeView], out: Output) -> None:
    """Write what the nodes have free together, by profile."""
    views = [v for n in nodes for v in n.gpus]
    out.line(f"{out.bold(counted(len(nodes), 'node'))}  {gpus_and_memory(views)}")
    free = _free(views)
    if not free:
        return
    rows: list[tuple[str, ...]] = [
        (name, str(f.slices), str(f.gpus), str(len(f.nodes))) for name, f in free.items()
    ]
    out.table(("PROFILE", "FREE", "ON GPUS", "ON NODES"), rows, indent="  ")
    out.line(out.dim("  FREE counts each profile as if no other were asked for"))


def list_nodes(nodes: Sequence[NodeView], out: Output) -> None:
    """Write a line for each node."""
    header = ("NODE", "GPUS", "FREE", "LARGEST", "UNAVAILABLE")
    out.table(header, [_row(n) for n in nodes], indent="  ")


def _free(views: Sequence[GpuView]) -> dict[str, _Free]:
    """Free slices by name of the profile, small profiles first, and last the whole GPUs."""
    profiles: dict[str, Profile] = {}
    free: dict[str, _Free] = {}
    for view in views:
        geometry = view.gpu.geometry if view.sliceable else None
        usable = [p for p in geometry.profiles if p.placements] if geometry else []
        counts = {p.name: view.room_for(p) for p in usable}
        profiles |= {p.name: p for p in usable}
        if view.is_free_whole:
            counts = {_WHOLE: 1}
        for name, count in counts.items():
            found = free.setdefault(name, _Free())
            if count:
                found.slices += count
                found.gpus += 1
                found.nodes.add(view.inventory.node)
    return dict(sorted(free.items(), key=lambda item: _size(profiles.get(item[0]), item[0])))


def _size(profile: Profile | None, name: str) -> tuple[float, int, str]:
    if profile is None:
        return float("inf"), 0, name
    return profile.memory_mib, profile.compute_slices, name


def _row(node: NodeView) -> tuple[str, ...]:
    views = node.gpus
    largest = max(
        (v.largest for v in views if v.largest is not None),
        key=lambda p: (p.memory_mib, p.compute_slices),
        default=None,
    )
    blocked = sum(bool(v.blocked) for v in views)
    whole = any(v.is_free_whole for v in views)
    return (
        node.name,
        str(len(views)),
        gib(sum(v.free_mib for v in views if not v.blocked)),
        largest.name if largest else _WHOLE if whole else "none",
        "all: not ready"
        if not node.inventory.ready
        else counted(blocked, "GPU")
        if blocked
        else "",
    )
