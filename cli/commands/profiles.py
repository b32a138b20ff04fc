"""``kubectl mig profiles``: what the GPUs can be cut into, and how much of it is free now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.facts import read_site
from cli.output import Exit, counted, natural
from cli.session import Session
from cli.site import GpuView
from dra.common.resources import Obj
from dra.gpu.geometry import Geometry, Profile
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
    if out.is_json:
        content = [
            {
                "productName": product,
                "gpus": [{"node": v.inventory.node, "name": v.gpu.name} for v in group],
                "memorySlices": geometry.memory_slices,
                "computeSlices": geometry.compute_slices,
                "profiles": [_json(offer) for offer in _offers(geometry, group)],
            }
            for (product, geometry), group in kinds.items()
        ]
        out.json("ProfileList", {"kinds": content})
        return Exit.OK
    for number, ((product, geometry), group) in enumerate(kinds.items()):
        if number:
            out.line()
        names = sorted({v.inventory.node for v in group}, key=natural)
        who = ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} nodes"
        title = out.bold(product.removeprefix("NVIDIA ") or "GPU")
        out.line(f"{title}  {len(group)} on {who}")
        out.table(
            ("PROFILE", "CLASS", "MEMORY", "SMS", "COMPUTE", "PLACEMENTS", "IN USE", "FREE"),
            [_row(offer, geometry) for offer in _offers(geometry, group)],
            indent="  ",
        )
    if kinds:
        out.line()
        out.line("PLACEMENTS: {starts}:size in memory slices, as nvidia-smi mig -lgipp prints them")
        out.line("FREE: slices that could be made now if no other profile were asked for")
    else:
        out.line("no GPU reports MIG profiles (kubectl mig doctor says more)")
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Offer:
    """A profile on the GPUs of a kind.

    ``in_use``: slices in use. ``free``: slices that could be made. ``placements``: free placements.
    ``gpus``: number of GPUs with a free placement.
    """

    profile: Profile
    in_use: int
    free: int
    placements: int
    gpus: int


def _offers(geometry: Geometry, group: Sequence[GpuView]) -> list[_Offer]:
    """The profiles of a geometry, the smallest first, with their use on the GPUs of ``group``."""
    usable = [p for p in geometry.profiles if p.placements]
    found = []
    for profile in sorted(usable, key=lambda p: (p.memory_mib, p.compute_slices, p.name)):
        counts = [len(geometry.free_placements(v.usage, profile)) for v in group if v.open]
        used = [{s.placement for s in v.slots if s.profile_id == profile.id} for v in group]
        free = sum(view.room_for(profile) for view in group)
        in_use = sum(map(len, used))
        found.append(_Offer(profile, in_use, free, sum(counts), sum(c > 0 for c in counts)))
    return found


def _row(offer: _Offer, geometry: Geometry) -> tuple[str, ...]:
    profile = offer.profile
    return (
        profile.name,
        class_name(profile.name),
        f"{profile.memory_mib}Mi",
        str(profile.multiprocessors),
        f"{profile.compute_slices}/{geometry.compute_slices}",
        f"{{{','.join(str(p.start) for p in profile.placements)}}}:{profile.memory_slices}",
        str(offer.in_use),
        f"{offer.free} on {counted(offer.gpus, 'GPU')}" if offer.free else "none",
    )


def _json(offer: _Offer) -> Obj:
    profile, engines = offer.profile, offer.profile.engines
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
        "inUse": offer.in_use,
        "freeStarts": offer.placements,
        "gpusWithRoom": offer.gpus,
    }
