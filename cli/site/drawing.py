"""The placement map as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cli.shell.output import Output
from cli.site.occupancy import ALLOCATED, GpuView, NodeView, Slot
from cli.site.sharing import is_shared, sharers, terms
from dra.gpu.geometry import Placement
from dra.gpu.inventory import InstanceState
from dra.gpu.placement_map import LABEL_WIDTH, Segment, color_of, compute_slices, draw_gpu, scale
from dra.gpu.reasons import GpuReason

_NOTE_WIDTH = 24
_NARROWEST = 32
_IN_USE = frozenset({InstanceState.PREPARED.value, ALLOCATED, InstanceState.PREPARING.value})


def draw_node(node: NodeView, out: Output) -> list[str]:
    """A node's GPUs, two lines each, and below them what needs words."""
    width = max(_NARROWEST, out.width - LABEL_WIDTH - _NOTE_WIDTH)
    lines = [_header(node, out)]
    slices = 0
    for view in node.gpus:
        known = view.gpu.geometry.memory_slices if view.gpu.geometry else 0
        if known and known != slices:
            lines.append(out.dim(scale(known, width=width).rstrip()))
            slices = known
        lines += _gpu(view, out, width)
    return lines


def remarks(node: NodeView) -> list[str]:
    """Faults with their reasons, one line each."""
    found = []
    if not node.inventory.ready:
        found.append(f"{node.name}: {node.inventory.message or 'the driver is not ready'}")
    mode = node.inventory.mode
    if mode is not None and mode.state != "success":
        what = f"layout {mode.layout}" if mode.layout else f"mode {mode.mode}"
        found.append(f"{node.name}: {what} is {mode.state}: {mode.message}")
    for view in node.gpus:
        if view.blocked and node.inventory.ready:
            found.append(f"{view.gpu.name}: {view.blocked}")
        for slot in view.slots:
            text = remark(slot)
            if text:
                found.append(f"{view.gpu.name}: {text}")
    return found


def remark(slot: Slot) -> str:
    """Peculiarity of a slot; empty for one that is simply in use."""
    held = f", of claim {slot.claim}" if slot.claim else ""
    parts = [p for p in (slot.message, slot.unhealthy) if p]
    if slot.state in _IN_USE and not parts:
        return ""
    return ": ".join([f"{slot.where} is {slot.state}{held}", *parts])


def _header(node: NodeView, out: Output) -> str:
    inventory = node.inventory
    products: dict[str, int] = {}
    for view in node.gpus:
        product = view.gpu.product_name.removeprefix("NVIDIA ") or "GPU"
        products[product] = products.get(product, 0) + 1
    free = sum(v.free_mib for v in node.gpus if not v.blocked)
    total = sum(v.gpu.memory_mib for v in node.gpus)
    facts = [
        ", ".join(f"{n} x {p}" for p, n in products.items()) or "no GPU",
        f"{_gib(free)} of {_gib(total)} free",
    ]
    if inventory.allocator != "controller":
        facts.append(f"allocated by kube-{inventory.allocator.value}")
    text = f"{out.bold(node.name)}  {'   '.join(facts)}"
    return text if inventory.ready else f"{text}   {out.bad('NOT READY')}"


def _gpu(view: GpuView, out: Output, width: int) -> list[str]:
    sharing = view.gpu.sharing
    if sharing is not None and not view.blocked:
        free = f"{_gib(view.free_mib)} free"
        notes = f"{view.shared.count} of {sharing.shares} shares, {free}", ""
    elif view.slots and not view.sliceable:
        notes = _holder(view), ""
    elif view.inventory.is_drained(view.gpu.name):
        notes = out.odd("drained"), ""
    elif view.gpu.reason == GpuReason.MIG_OFF:
        notes = "MIG is off: the whole GPU is free", ""
    elif view.blocked:
        notes = out.odd(view.gpu.reason or "withheld"), ""
    else:
        notes = _room(view)
    lines = draw_gpu(
        view.gpu,
        _segments(view, width),
        style=out.style,
        width=width,
        notes=notes,
        hatched=bool(view.blocked),
    )
    return [*lines, *(_sharer(slot) for slot in view.slots if is_shared(slot))]


def _holder(view: GpuView) -> str:
    """Who has a GPU whose slices cannot be drawn: whole, or slices from before MIG mode went."""
    first, *others = view.slots
    if not first.profile:
        return f"held whole by {first.owner}"
    more = f", and {len(others)} more" if others else ""
    return f"MIG is off: {first.profile} of {first.owner} is {first.state}{more}"


def _sharer(slot: Slot) -> str:
    """The line of a claim that shares the GPU above it, or whose pods share a device of it."""
    where = f"{slot.where}  " if slot.share is None or slot.placement is not None else ""
    return f"{'':{LABEL_WIDTH}}{sharers(slot)}  {where}{terms(slot)}"


def _room(view: GpuView) -> tuple[str, str]:
    largest, free = view.largest, view.free_mib
    if largest is not None:
        return f"fits {largest.name}", f"{_gib(free)} free"
    return "full", f"{_gib(free)} stranded" if free else ""


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
            _sharers(view, slot.placement, room) or _fitting(slot, room),
            color_of(slot.state, compute_slices(view.gpu, slot.profile_id)),
        )


def _sharers(view: GpuView, placement: Placement, room: int) -> str:
    """``2 of 4 shares`` of a slice that several claims may have; empty of any other."""
    count = sum(s.placement == placement and s.share is not None for s in view.slots)
    sharing = view.gpu.slice_sharing
    if not count or sharing is None:
        return ""
    told = f"{count} of {sharing.shares}"
    return f"{told} shares" if len(f"{told} shares") <= room else told


def _label(slot: Slot, room: int) -> str:
    """The profile, and what is unusual about it where there is room."""
    label = slot.profile or "?"
    unusual = slot.state if slot.state != InstanceState.PREPARED else ""
    if slot.unhealthy:
        unusual = "unhealthy"
    both = f"{label} {unusual}"
    return both if unusual and slot.claim is not None and len(both) <= room else label


def _fitting(slot: Slot, room: int) -> str:
    """The owner in full, or without its namespace; a state that people should see goes first."""
    if slot.claim is None or slot.state not in (*_IN_USE, InstanceState.RECLAIMING.value):
        return slot.state
    if slot.state == InstanceState.RECLAIMING and len(f"{slot.profile} reclaiming") > room:
        return slot.state
    owner = slot.owner
    return owner if len(owner) <= room else owner.partition("/")[2]


def _gib(mib: int) -> str:
    return f"{mib // 1024}Gi"
