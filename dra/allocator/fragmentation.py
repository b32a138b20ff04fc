"""Fragmentation: what could be made now on the GPUs of each product, and what lies idle. Pure.

Every state of a GPU is looked at once, however many GPUs are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId
from dra.allocator.moves import MoveTable
from dra.allocator.score import sws
from dra.gpu.geometry import Placement, Usage


@dataclass(slots=True)
class ProductRoom:
    """Memory slices of the GPUs of a product that can be given in slices.

    ``held`` and ``free``: taken and free. ``withheld``: free on GPUs on which nothing is made now.
    ``stranded``: free where what is asked for does not fit: the mean, over the profiles by how
    often each was asked for lately, of what is free on GPUs without a place for the profile (the
    measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023). ``largest``: size of the
    largest slice that could be made. ``placeable``: by profile, the most slices of it alone that
    could be made.
    """

    held: int = 0
    free: int = 0
    withheld: int = 0
    stranded: float = 0.0
    largest: int = 0
    placeable: Counter[str] = field(default_factory=Counter)


def rooms(fleet: Fleet) -> dict[str, ProductRoom]:
    """By product, the room on its GPUs. For any thread: a change meanwhile may be seen or not."""
    states: Counter[tuple[str, MoveTable, Usage, bool]] = Counter()
    for group in [*fleet.groups.values()]:  # a copy that no other thread interrupts
        state = group.state
        if state.table is not None and not state.whole_held:
            key = state.gpu.product_name, state.table, state.usage, state.takes_slices
            states[key] += len(group.members)
    found: dict[str, ProductRoom] = {}
    for (product, table, usage, takes_slices), number in states.items():
        room = found.setdefault(product, ProductRoom())
        taken = usage.mask.bit_count()
        left = table.geometry.memory_slices - taken
        room.held += taken * number
        if not takes_slices:
            room.withheld += left * number
            continue
        room.free += left * number
        shares = fleet.demand.shares(table.geometry)
        for profile, share in zip(table.geometry.profiles, shares, strict=True):
            most = table.most(usage, profile)
            room.placeable[profile.name] += most * number
            if most:
                room.largest = max(room.largest, profile.memory_slices)
            else:
                room.stranded += share * left * number
    return found


def charge(fleet: Fleet, slices: Iterable[tuple[GpuId, str, Placement]]) -> float:
    """Charge of the default policy for slices made in this order, by GPU, profile and placement.

    Returned in memory slices that others are likely to lack.
    """
    total, usages = 0.0, dict[GpuId, Usage]()
    for gpu, name, placement in slices:
        state = fleet.state(gpu)
        profile = state.table.geometry.by_name(name) if state.table is not None else None
        if state.table is None or profile is None:
            continue
        usage = usages.get(gpu, state.usage)
        moves = state.table.moves(usage, profile)
        move = next((m for m in moves if m.placement == placement), None)
        if move is not None:
            seen = state.situation(fleet.weights(state.table))._replace(usage=usage)
            total += sws(seen, move)[0]
            usages[gpu] = move.after
    return total
