"""The placement map as text: nodes drawn, or one line for each of many nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cli.output import NAME, Output, counted, named, nameless
from cli.site import ALLOCATED, READY, GpuView, NodeView, Slot
from dra.gpu.geometry import Counts, Geometry, Placement, Profile, Usage
from dra.gpu.inventory import GpuReason, InstanceState
from dra.gpu.placement_map import (
    LABEL_WIDTH,
    Segment,
    color_of,
    compute_slices,
    draw_gpu,
    sample,
    scale,
)

WHOLE = "whole GPU"
"""Name of the room of GPUs whose MIG mode is off."""

_WHOLE_RANK = 2**31
"""Above that of any profile."""

_LARGEST = "largest"
_NARROWEST = 32
_IN_USE = frozenset({InstanceState.PREPARED.value, ALLOCATED, InstanceState.PREPARING.value})
_STATES = {
    ALLOCATED: "given to a claim, not made yet",
    READY: "made, free",
    InstanceState.PREPARING.value: "being made",
    InstanceState.RECLAIMING.value: "its claim is gone, not removed yet",
    InstanceState.ORPHAN.value: "left by a failure, not removed yet",
    InstanceState.FOREIGN.value: "made by another program, left alone",
    InstanceState.LOST.value: "a claim's, and gone from the GPU",
}


def draw_node(node: NodeView, out: Output) -> None:
    """Write a node's GPUs, two lines each, and below each the claims that share the GPU."""
    inventory = node.inventory
    header = f"{out.bold(node.name)}  {_gpus_and_memory(node.gpus)}"
    if inventory.allocator != "controller":
        header += f"   allocated by kube-{inventory.allocator.value}"
    mark = "SILENT" if node.silence else "" if inventory.ready else "NOT READY"
    out.line(f"{header}   {out.bad(mark)}" if mark else header)
    notes = max([len(_LARGEST), *(len(text) for v in node.gpus for text in room_of(v))])
    width = max(_NARROWEST, out.width - LABEL_WIDTH - notes - 1)
    slices = 0
    for view in node.gpus:
        known = view.gpu.geometry.memory_slices if view.gpu.geometry else 0
        if known and known != slices:
            out.line(out.dim(f"{scale(known, width=width)} {_LARGEST}"))
            slices = known
        words = words_of(view)
        for line in draw_gpu(
            replace(view.gpu, geometry=None) if words else view.gpu,
            _segments(view, width),
            style=out.style,
            width=width,
            notes=(words,) if words else room_of(view),
            shade=_unavailable(view) if view.blocked else None,
        ):
            out.line(line)
        for slot in view.slots:
            if slot.is_shared:
                whole = slot.share is not None and slot.placement is None
                where = "" if whole else f"{slot.where}  "
                out.line(f"{'':{LABEL_WIDTH}}{slot.sharers}  {where}{slot.terms}")


def write_legend(nodes: Sequence[NodeView], out: Output) -> None:
    """Write what the drawing of the nodes means: columns, signs, colours and states."""
    drawn = [v for n in nodes for v in n.gpus if v.gpu.geometry and not words_of(v)]
    if not drawn:
        return
    states = {s.state for v in drawn for s in (*v.slots, *v.ready) if s.placement is not None}
    entries = [f"{out.style.dot} free"]
    if any(v.blocked for v in drawn):
        entries.append(f"{out.style.hatch} unavailable")
    if out.style.color:
        sizes = {compute_slices(v.gpu, s.profile_id) for v in drawn for s in v.slots} - {0}
        entries += [sample(f" {size}g ", size, out.style) for size in sorted(sizes)]
    entries += [f"{state}: {text}" for state, text in _STATES.items() if state in states]
    out.line(f"columns: memory slices; {_LARGEST}: largest profile that fits, and free memory")
    for line in out.packed(entries):
        out.line(line)


def write_summary(nodes: Sequence[NodeView], out: Output) -> None:
    """Write how many slices of each profile are free on all nodes, and how many whole GPUs."""
    views = [v for n in nodes for v in n.gpus]
    out.line(f"{out.bold(counted(len(nodes), 'node'))}  {_gpus_and_memory(views)}")
    found = rooms_of(views)
    if not any(room.most for room in found.values()):
        return
    rows = [
        (name, str(room.free), str(len(room.nodes)), str(len({*room.nodes})))
        for name, room in sorted(found.items(), key=lambda f: (f[1].rank, f[0]))
    ]
    out.table(("PROFILE", "FREE", "ON GPUS", "ON NODES"), rows, indent="  ")
    out.line(out.dim("  FREE counts each profile as if no other were asked for"))


def write_list(nodes: Sequence[NodeView], out: Output) -> None:
    """Write a line for each node."""
    rows: list[tuple[str, ...]] = []
    for node in nodes:
        views = node.gpus
        profiles = [v.largest for v in views if v.largest is not None]
        largest = max(profiles, key=_size).name if profiles else ""
        whole = WHOLE if any(v.is_free_whole for v in views) else "none"
        blocked = sum(bool(v.blocked) for v in views)
        unavailable, ready = counted(blocked, "GPU") if blocked else "", node.inventory.ready
        rows.append(
            (
                node.name,
                str(len(views)),
                _gib(sum(v.free_mib for v in views if not v.blocked)),
                largest or whole,
                "silent" if node.silence else unavailable if ready else "all: not ready",
            )
        )
    out.table(("NODE", "GPUS", "FREE", "LARGEST", "UNAVAILABLE"), rows, indent="  ")


def _size(profile: Profile) -> tuple[int, int]:
    return profile.memory_mib, profile.compute_slices


class _Faulty(NamedTuple):
    """A node, GPU or slice with a fault. ``noun``, ``name``: of the GPU or slice, else empty."""

    node: str
    noun: str = ""
    name: str = ""


def remarks(nodes: Sequence[NodeView]) -> list[str]:
    """A line of text for each fault, with the number and the first names of all that have it."""
    found: dict[str, list[_Faulty]] = {}
    for node in nodes:
        for each, text in _faults(node):
            # Reasons that differ in the node's name alone are the same.
            found.setdefault(nameless(text, node.name), []).append(each)
    lines = []
    for text, faulty in found.items():
        at = list(dict.fromkeys(f.node for f in faulty))
        count = f"{counted(len(faulty), faulty[0].noun)} on " if faulty[0].noun else ""
        where = f"{count}{named(at)}"
        if len(at) == 1 and faulty[0].noun:
            where = ("" if len(nodes) == 1 else f"{at[0]} ") + named([f.name for f in faulty])
        lines.append(f"{where}: {text.replace(NAME, at[0] if len(at) == 1 else 'NODE')}")
    return lines


def _faults(node: NodeView) -> Iterator[tuple[_Faulty, str]]:
    for why in node.faults:
        yield _Faulty(node.name), why
    for view in node.gpus:
        if view.blocked and node.inventory.ready:
            yield _Faulty(node.name, "GPU", view.gpu.name), view.blocked
        for slot in view.slots:
            if why := _peculiarity(slot):
                held = f" of claim {slot.claim}" if slot.claim else ""
                name = f"{view.gpu.name} {slot.where}{held}"
                yield _Faulty(node.name, "slice", name), why


def remark(slot: Slot) -> str:
    """Peculiarity of a slot; empty for one that is simply in use."""
    why = _peculiarity(slot, f", of claim {slot.claim}" if slot.claim else "")
    return f"{slot.where} is {why}" if why else ""


def _peculiarity(slot: Slot, held: str = "") -> str:
    parts = [p for p in (slot.message, slot.unhealthy) if p]
    if slot.state in _IN_USE and not parts:
        return ""
    return ": ".join([f"{slot.state}{held}", *parts])


def _gpus_and_memory(views: Sequence[GpuView]) -> str:
    """``8 x H100-80GB-HBM3   120Gi of 640Gi free``."""
    products: dict[str, int] = {}
    for view in views:
        product = view.gpu.product_name.removeprefix("NVIDIA ") or "GPU"
        products[product] = products.get(product, 0) + 1
    free = sum(v.free_mib for v in views if not v.blocked)
    total = sum(v.gpu.memory_mib for v in views)
    numbers = ", ".join(f"{n} x {p}" for p, n in products.items()) or "no GPU"
    return f"{numbers}   {_gib(free)} of {_gib(total)} free"


def _gib(mib: int) -> str:
    return f"{mib // 1024}Gi"


def words_of(view: GpuView) -> str:
    """Words for a GPU that is not drawn, as it has no slices; empty for one that is drawn."""
    shares = view.gpu.shares
    if shares and not view.blocked:
        return f"{view.shared.count} of {shares} shares, {_gib(view.free_mib)} free"
    if view.slots and not view.sliceable:
        first, *others = view.slots
        if not first.profile:
            return f"held whole by {first.owner}"
        more = f", and {len(others)} more" if others else ""
        return f"MIG is off: {first.profile} of {first.owner} is {first.state}{more}"
    if view.gpu.reason == GpuReason.MIG_OFF and not view.inventory.is_drained(view.gpu.name):
        return "MIG is off: the whole GPU is free"
    if view.gpu.geometry is None or not view.gpu.geometry.memory_slices:
        return _unavailable(view) if view.blocked else "no MIG"
    return ""


def _unavailable(view: GpuView) -> str:
    drained = view.inventory.is_drained(view.gpu.name)
    return "drained" if drained else view.gpu.reason or "unavailable"


def room_of(view: GpuView) -> tuple[str, str]:
    """The largest profile that can be placed, and free memory, as text."""
    if view.blocked or words_of(view):
        return "", ""
    largest, free = view.largest, view.free_mib
    if largest is None:
        return ("none", _gib(free)) if free else ("full", "")
    return largest.name, _gib(free)


@dataclass(slots=True)
class Room:
    """Room that GPUs have for one profile, or for whole GPUs.

    ``rank``: as of a profile. ``free``: instances that could be made as if no other profile were
    asked for. ``most``: of empty GPUs. ``nodes``: of the GPUs that have room, each as often as it
    has such GPUs. ``lacks``: number of GPUs by what they lack (:func:`lack`) beside the memory.
    """

    rank: int
    free: int = 0
    most: int = 0
    nodes: list[str] = field(default_factory=list)
    lacks: Counter[str] = field(default_factory=Counter)

    def add(self, free: int, node: str, *, most: int) -> None:
        """Count a GPU."""
        self.free, self.most = self.free + free, self.most + most
        self.nodes += [node] * (free > 0)


def lack(geometry: Geometry, usage: Usage, profile: Profile) -> str:
    """Lack of a GPU that keeps one more instance of a profile off it; empty if none.

    ``memory``, what of ``Counts`` is too little (``compute slices``), or ``place``: the free memory
    is at none of its placements.
    """
    if geometry.memory_slices - usage.mask.bit_count() < profile.memory_slices:
        return "memory"
    wanted = zip(Counts._fields, usage.counts.plus(profile.counts), geometry.totals, strict=True)
    for name, count, total in wanted:
        if count > total:
            return name.replace("_", " ")
    return "" if geometry.free_placements(usage, profile) else "place"


def rooms_of(views: Iterable[GpuView]) -> dict[str, Room]:
    """The room of GPUs by the name of the profile."""
    found: dict[str, Room] = {}
    most: dict[tuple[Geometry, str], int] = {}
    for view in views:
        geometry, node, is_open = view.gpu.geometry, view.inventory.node, view.open
        if not view.sliceable or geometry is None:
            if not view.gpu.shares:
                room = found.setdefault(WHOLE, Room(_WHOLE_RANK))
                room.add(view.is_free_whole, node, most=1)
            continue
        usage = view.usage
        for profile in geometry.profiles:
            if not profile.placements:
                continue
            key = geometry, profile.name
            if key not in most:
                most[key] = geometry.most([profile])
            room = found.setdefault(profile.name, Room(profile.rank))
            missing = lack(geometry, usage, profile) if is_open else "memory"
            count = 0 if missing else geometry.most([profile], usage)
            room.add(count, node, most=most[key])
            if missing not in {"", "memory"}:
                room.lacks[missing] += 1
    return found


def _segments(view: GpuView, width: int) -> Iterable[Segment]:
    slices = view.gpu.geometry.memory_slices if view.gpu.geometry else 1
    drawn = set()
    for slot in (*view.slots, *view.ready):
        if slot.placement is None or slot.placement in drawn:
            continue
        drawn.add(slot.placement)
        room = slot.placement.size * (width // slices) - 1
        yield Segment(
            slot.placement,
            _label(slot, room),
            _sharers(view, slot.placement, room) or _owner(slot, room),
            color_of(slot.state, compute_slices(view.gpu, slot.profile_id)),
        )


def _sharers(view: GpuView, placement: Placement, room: int) -> str:
    """``2 of 4 shares`` of a slice that several claims may have; empty of any other."""
    count = sum(s.placement == placement and s.share is not None for s in view.slots)
    shares = view.gpu.slice_shares
    if not count or not shares:
        return ""
    told = f"{count} of {shares}"
    return f"{told} shares" if len(f"{told} shares") <= room else told


def _label(slot: Slot, room: int) -> str:
    """The slot's profile, and its state if that is unusual and both fit into ``room`` columns."""
    label = slot.profile or "?"
    unusual = slot.state if slot.state != InstanceState.PREPARED else ""
    if slot.unhealthy:
        unusual = "unhealthy"
    both = f"{label} {unusual}"
    return both if unusual and slot.claim is not None and len(both) <= room else label


def _owner(slot: Slot, room: int) -> str:
    """The slot's owner, without namespace if too long; or a state that people should see."""
    if slot.claim is None or slot.state not in (*_IN_USE, InstanceState.RECLAIMING.value):
        return slot.state
    if slot.state == InstanceState.RECLAIMING and len(f"{slot.profile} reclaiming") > room:
        return slot.state
    owner = slot.owner
    return owner if len(owner) <= room else owner.partition("/")[2]
