"""The placement map as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cli.shell.output import NAME, Output, counted, named, nameless
from cli.site.occupancy import ALLOCATED, READY, GpuView, NodeView, Slot
from cli.site.sharing import is_shared, sharers, terms
from dra.gpu.geometry import Placement
from dra.gpu.inventory import InstanceState
from dra.gpu.placement_map import (
    LABEL_WIDTH,
    Segment,
    color_of,
    compute_slices,
    draw_gpu,
    sample,
    scale,
)
from dra.gpu.reasons import GpuReason

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


def draw_node(node: NodeView, out: Output) -> list[str]:
    """A node's GPUs, two lines each, and below them what needs words."""
    noted = max([len(_LARGEST), *(len(text) for v in node.gpus for text in _room(v))])
    width = max(_NARROWEST, out.width - LABEL_WIDTH - noted - 1)
    lines = [_header(node, out)]
    slices = 0
    for view in node.gpus:
        known = view.gpu.geometry.memory_slices if view.gpu.geometry else 0
        if known and known != slices:
            lines.append(out.dim(f"{scale(known, width=width)} {_LARGEST}"))
            slices = known
        lines += _gpu(view, out, width)
    return lines


def legend(nodes: Sequence[NodeView], out: Output) -> list[str]:
    """Meanings of what was drawn of the nodes: columns, signs, colours and states."""
    drawn = [v for n in nodes for v in n.gpus if v.gpu.geometry and not _words(v)]
    if not drawn:
        return []
    slots = [s for v in drawn for s in (*v.slots, *v.ready) if s.placement is not None]
    sizes = {compute_slices(v.gpu, s.profile_id) for v in drawn for s in v.slots} - {0}
    entries = [f"{out.style.dot} free"]
    if any(v.blocked for v in drawn):
        entries.append(f"{out.style.hatch} unavailable")
    if out.style.color:
        entries += [sample(f" {size}g ", size, out.style) for size in sorted(sizes)]
    states = {slot.state for slot in slots}
    entries += [f"{state}: {text}" for state, text in _STATES.items() if state in states]
    columns = f"columns: memory slices; {_LARGEST}: largest profile that fits, and free memory"
    return [columns, *out.packed(entries)]


def remarks(nodes: Sequence[NodeView]) -> list[str]:
    """Faults, a line for each reason, with what has it: its number and the first names."""
    found: dict[str, list[_Faulty]] = {}
    for node in nodes:
        for each, text in _faults(node):
            # A reason that says the node's name is the same reason on another node.
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


class _Faulty(NamedTuple):
    """A node that has a fault, or a GPU or slice of it, which have a noun and a name."""

    node: str
    noun: str = ""
    name: str = ""


def _faults(node: NodeView) -> Iterator[tuple[_Faulty, str]]:
    if not node.inventory.ready:
        yield _Faulty(node.name), node.inventory.message or "the driver is not ready"
    mode = node.inventory.mode
    if mode is not None and mode.state != "success":
        what = f"layout {mode.layout}" if mode.layout else f"mode {mode.mode}"
        yield _Faulty(node.name), f"{what} is {mode.state}: {mode.message}"
    for view in node.gpus:
        if view.blocked and node.inventory.ready:
            yield _Faulty(node.name, "GPU", view.gpu.name), view.blocked
        for slot in view.slots:
            if why := _peculiarity(slot):
                held = f" of claim {slot.claim}" if slot.claim else ""
                name = f"{view.gpu.name} {slot.where}{held}"
                yield _Faulty(node.name, "slice", name), why


def _peculiarity(slot: Slot, held: str = "") -> str:
    parts = [p for p in (slot.message, slot.unhealthy) if p]
    if slot.state in _IN_USE and not parts:
        return ""
    return ": ".join([f"{slot.state}{held}", *parts])


def remark(slot: Slot) -> str:
    """Peculiarity of a slot; empty for one that is simply in use."""
    why = _peculiarity(slot, f", of claim {slot.claim}" if slot.claim else "")
    return f"{slot.where} is {why}" if why else ""


def gpus_and_memory(views: Sequence[GpuView]) -> str:
    """``8 x H100-80GB-HBM3   120Gi of 640Gi free``."""
    products: dict[str, int] = {}
    for view in views:
        product = view.gpu.product_name.removeprefix("NVIDIA ") or "GPU"
        products[product] = products.get(product, 0) + 1
    free = sum(v.free_mib for v in views if not v.blocked)
    total = sum(v.gpu.memory_mib for v in views)
    numbers = ", ".join(f"{n} x {p}" for p, n in products.items()) or "no GPU"
    return f"{numbers}   {gib(free)} of {gib(total)} free"


def gib(mib: int) -> str:
    """Memory in whole GiB."""
    return f"{mib // 1024}Gi"


def _header(node: NodeView, out: Output) -> str:
    inventory = node.inventory
    text = f"{out.bold(node.name)}  {gpus_and_memory(node.gpus)}"
    if inventory.allocator != "controller":
        text += f"   allocated by kube-{inventory.allocator.value}"
    return text if inventory.ready else f"{text}   {out.bad('NOT READY')}"


def _gpu(view: GpuView, out: Output, width: int) -> list[str]:
    words = _words(view)
    lines = draw_gpu(
        view.gpu if not words else replace(view.gpu, geometry=None),
        _segments(view, width),
        style=out.style,
        width=width,
        notes=(words,) if words else _room(view),
        shade=_unavailable(view) if view.blocked else None,
    )
    return [*lines, *(_sharer(slot) for slot in view.slots if is_shared(slot))]


def _holder(view: GpuView) -> str:
    """Holder of a GPU whose slices cannot be drawn: whole, or slices from before MIG mode went."""
    first, *others = view.slots
    if not first.profile:
        return f"held whole by {first.owner}"
    more = f", and {len(others)} more" if others else ""
    return f"MIG is off: {first.profile} of {first.owner} is {first.state}{more}"


def _words(view: GpuView) -> str:
    """Use of a GPU that is not drawn, as nothing is cut from it; empty for one that is."""
    sharing = view.gpu.sharing
    if sharing is not None and not view.blocked:
        return f"{view.shared.count} of {sharing.shares} shares, {gib(view.free_mib)} free"
    if view.slots and not view.sliceable:
        return _holder(view)
    if view.gpu.reason == GpuReason.MIG_OFF and not view.inventory.is_drained(view.gpu.name):
        return "MIG is off: the whole GPU is free"
    if view.gpu.geometry is None or not view.gpu.geometry.memory_slices:
        return _unavailable(view) if view.blocked else "no MIG"
    return ""


def _unavailable(view: GpuView) -> str:
    drained = view.inventory.is_drained(view.gpu.name)
    return "drained" if drained else view.gpu.reason or "unavailable"


def _sharer(slot: Slot) -> str:
    """The line of a claim that shares the GPU above it, or whose pods share a device of it."""
    where = f"{slot.where}  " if slot.share is None or slot.placement is not None else ""
    return f"{'':{LABEL_WIDTH}}{sharers(slot)}  {where}{terms(slot)}"


def _room(view: GpuView) -> tuple[str, str]:
    """The largest profile that can be placed, and free memory."""
    if view.blocked or _words(view):
        return "", ""
    largest, free = view.largest, view.free_mib
    if largest is None:
        return ("none", gib(free)) if free else ("full", "")
    return largest.name, gib(free)


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
