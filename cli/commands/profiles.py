"""``kubectl mig profiles``: what the GPUs can be cut into, and how much of it is free now."""

from __future__ import annotations

import argparse
from typing import Any

from cli.shell.exits import CliError, Exit
from cli.shell.output import counted
from cli.shell.session import Session
from cli.site.occupancy import GpuView
from cli.site.reading import site
from dra.gpu.geometry import Geometry, Profile
from dra.gpu.names import class_name


def run(session: Session, arguments: argparse.Namespace) -> int:
    """List the profiles, per kind of GPU."""
    found = site(session)
    views = list(found.gpus)
    if arguments.node:
        for name in arguments.node:
            if found.node(name) is None:
                raise CliError(Exit.NOT_FOUND, f"there is no MigNode {name!r}")
        views = [v for v in views if v.inventory.node in arguments.node]
    kinds: dict[tuple[str, Geometry], list[GpuView]] = {}
    for view in views:
        if view.gpu.geometry is not None and view.gpu.geometry.memory_slices:
            kinds.setdefault((view.gpu.product_name, view.gpu.geometry), []).append(view)
    if session.out.is_json:
        content = [
            {
                "productName": product,
                "gpus": [{"node": v.inventory.node, "name": v.gpu.name} for v in group],
                "memorySlices": geometry.memory_slices,
                "computeSlices": geometry.compute_slices,
                "profiles": [_json(p, geometry, group) for p in _ordered(geometry)],
            }
            for (product, geometry), group in kinds.items()
        ]
        session.out.json("ProfileList", {"kinds": content})
        return Exit.OK
    out = session.out
    for number, ((product, geometry), group) in enumerate(kinds.items()):
        if number:
            out.line()
        nodes = sorted({v.inventory.node for v in group})
        who = ", ".join(nodes) if len(nodes) <= 4 else f"{len(nodes)} nodes"  # noqa: PLR2004
        title = out.bold(product.removeprefix("NVIDIA ") or "GPU")
        out.line(f"{title}  {len(group)} on {who}")
        out.table(
            ("PROFILE", "CLASS", "MEMORY", "SMS", "COMPUTE", "PLACEMENTS", "IN USE", "FREE"),
            [_row(p, geometry, group) for p in _ordered(geometry)],
            indent="  ",
        )
    if kinds:
        out.line()
        out.line("PLACEMENTS: {starts}:size in memory slices, as nvidia-smi mig -lgipp prints them")
        out.line("FREE: slices that could be made now if no other profile were asked for")
    else:
        out.line("no GPU reports MIG profiles (kubectl mig doctor says more)")
    return Exit.OK


def _ordered(geometry: Geometry) -> list[Profile]:
    usable = [p for p in geometry.profiles if p.placements]
    return sorted(usable, key=lambda p: (p.memory_mib, p.compute_slices, p.name))


def _placeable(profile: Profile, geometry: Geometry, group: list[GpuView]) -> tuple[int, int]:
    """Placements of ``profile`` that are free now, and the GPUs that have any."""
    counts = [len(geometry.free_placements(v.usage, profile)) for v in group if v.open]
    return sum(counts), sum(c > 0 for c in counts)


def _in_use(profile: Profile, group: list[GpuView]) -> int:
    return sum(len({s.placement for s in v.slots if s.profile_id == profile.id}) for v in group)


def _row(profile: Profile, geometry: Geometry, group: list[GpuView]) -> tuple[str, ...]:
    free = sum(view.room_for(profile) for view in group)
    _, gpus = _placeable(profile, geometry, group)
    return (
        profile.name,
        class_name(profile.name),
        f"{profile.memory_mib}Mi",
        str(profile.multiprocessors),
        f"{profile.compute_slices}/{geometry.compute_slices}",
        f"{{{','.join(str(p.start) for p in profile.placements)}}}:{profile.memory_slices}",
        str(_in_use(profile, group)),
        f"{free} on {counted(gpus, 'GPU')}" if free else "none",
    )


def _json(profile: Profile, geometry: Geometry, group: list[GpuView]) -> dict[str, Any]:
    starts, gpus = _placeable(profile, geometry, group)
    engines = profile.engines
    return {
        "name": profile.name,
        "id": profile.id,
        "deviceClass": class_name(profile.name),
        "memoryMiB": profile.memory_mib,
        "multiprocessors": profile.multiprocessors,
        "computeSlices": profile.compute_slices,
        "memorySlices": profile.memory_slices,
        "starts": [p.start for p in profile.placements],
        "copyEngines": engines.copy_engines,
        "decoders": engines.decoders,
        "encoders": engines.encoders,
        "jpegEngines": engines.jpeg_engines,
        "ofaEngines": engines.ofa_engines,
        "inUse": _in_use(profile, group),
        "freeStarts": starts,
        "gpusWithRoom": gpus,
    }
