"""``kubectl mig profiles``: what the GPUs can be cut into, and how much of it is free now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cli.drawing import rooms_of
from cli.facts import read_site
from cli.output import Exit, counted, natural
from cli.session import Session
from cli.site import GpuView
from dra.gpu.geometry import Geometry
from dra.gpu.names import class_name

_MOST_NAMED = 4
"""Number of nodes up to which those with a kind of GPU are named."""


def run(session: Session, *, node: Sequence[str]) -> int:
    """List the profiles, per kind of GPU."""
    site, out = read_site(session), session.out
    nodes = [site.named(name) for name in dict.fromkeys(node)] if node else site.nodes
    kinds: dict[tuple[str, Geometry], list[GpuView]] = {}
    for view in (v for each in nodes for v in each.gpus):
        if view.gpu.geometry is not None and view.gpu.geometry.memory_slices:
            kinds.setdefault((view.gpu.product_name, view.gpu.geometry), []).append(view)
    for number, ((product, geometry), group) in enumerate(kinds.items()):
        if number:
            out.line()
        names = sorted({v.inventory.node for v in group}, key=natural)
        who = ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} nodes"
        title = out.bold(product.removeprefix("NVIDIA ") or "GPU")
        out.line(f"{title}  {len(group)} on {who}")
        out.table(
            ("PROFILE", "CLASS", "MEMORY", "SMS", "COMPUTE", "PLACEMENTS", "IN USE", "FREE"),
            [*_rows(geometry, group)],
            indent="  ",
        )
    if kinds:
        out.line()
        out.line("PLACEMENTS: {starts}:size in memory slices, as nvidia-smi mig -lgipp prints them")
        out.line("FREE: slices that could be made now if no other profile were asked for")
    else:
        out.line("no GPU reports MIG profiles (kubectl mig doctor says more)")
    return Exit.OK


def _rows(geometry: Geometry, group: Sequence[GpuView]) -> Iterator[tuple[str, ...]]:
    """A row for each profile of a geometry, the smallest first, with its use on ``group``."""
    usable, rooms = [p for p in geometry.profiles if p.placements], rooms_of(group)
    for profile in sorted(usable, key=lambda p: (p.memory_mib, p.compute_slices, p.name)):
        used = [{s.placement for s in v.slots if s.profile_id == profile.id} for v in group]
        room = rooms.get(profile.name)  # none where MIG mode is off
        yield (
            profile.name,
            class_name(profile.name),
            f"{profile.memory_mib}Mi",
            str(profile.multiprocessors),
            f"{profile.compute_slices}/{geometry.compute_slices}",
            f"{{{','.join(str(p.start) for p in profile.placements)}}}:{profile.memory_slices}",
            str(sum(map(len, used))),
            f"{room.free} on {counted(len(room.nodes), 'GPU')}" if room and room.free else "none",
        )
