"""Ways to place slices that the default policy is measured against.

``kube`` models what users have without the controller: LeastAllocated of kube-scheduler takes the
node with the fewest pods on which all fits, and there the first devices in name order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import add, itemgetter, mul

from dra.allocator.moves import Move, MoveTable
from dra.allocator.score import POLICIES, Cost, poisson_tail
from dra.gpu.geometry import Usage
from dra.resourceslices.partitions import placements_in_order
from hack.bench.fleet import Cheapest, Chooser, Device, Fleet, Judge, State, judge

_SELDOM = 0.01


def first_fit(_state: State, _move: Move) -> Cost:
    """The first GPU in name order, at the lowest start."""
    return ()


@cache
def fragmentation(table: MoveTable, mask: int) -> int:
    """Sum of the memory slices of blocked placements whose profile would have room by its size.

    The metric of MFI: profiles larger than what is free do not count.
    """
    free = table.geometry.memory_slices - mask.bit_count()
    return sum(
        profile.memory_slices
        for profile in table.geometry.profiles
        if profile.memory_slices <= free
        for placement in profile.placements
        if mask & placement.mask
    )


def mfi(state: State, move: Move) -> Cost:
    """Least growth of fragmentation; then the fullest GPU.

    Zambianco et al., "An Online Fragmentation-Aware GPU Scheduler for Multi-Tenant MIG-based
    Clouds", 2025.
    """
    table, usage, _ = state
    grown = fragmentation(table, move.after.mask) - fragmentation(table, usage.mask)
    return (grown, move.free)


def scarcity(fleet: Fleet) -> Judge:
    """Loss of places for the profiles of which few are left, and of slices for every packing.

    Places are scarce for a tenth of the fleet's slices in requests to come, however full it is.
    """
    known: dict[tuple[MoveTable, int], tuple[list[float], tuple[int]]] = {}

    def weights(table: MoveTable) -> tuple[list[float], tuple[int]]:
        shape, census = table.geometry, fleet.census(table)
        shares = fleet.demand.shares(shape)
        requests = 0.1 * census.gpus * shape.memory_slices / sum(map(mul, shares, shape.sizes))
        placements = [
            size * (poisson_tail(requests * share, left) + 1e-4 * share)
            for size, share, left in zip(shape.sizes, shares, census.feasible, strict=True)
        ]
        return placements, (sum((share >= _SELDOM) << index for index, share in enumerate(shares)),)

    def cost(state: State, move: Move) -> Cost:
        table, _, instances = state
        if (table, fleet.changes) not in known:
            known.clear()
            known[table, fleet.changes] = weights(table)
        placements, wanted = known[table, fleet.changes]
        lost = sum(map(mul, placements, move.loss)) + 0.1 * move.waste[wanted]
        return (lost, move.free, -instances)

    return cost


def fgd(fleet: Fleet) -> Judge:
    """Least growth of what the known mix cannot use (fragmentation gradient descent).

    Weng et al., "Beware of Fragmentation", USENIX ATC 2023: what is free on a GPU is lost to the
    profiles that do not fit there, each by its share of the requests.
    """
    known: dict[tuple[MoveTable, int], tuple[float, ...]] = {}

    def unusable(table: MoveTable, usage: Usage) -> float:
        if (table, fleet.changes) not in known:
            known.clear()
            known[table, fleet.changes] = fleet.demand.shares(table.geometry)
        shares, fits = known[table, fleet.changes], table.feasible(usage)
        free = table.geometry.memory_slices - usage.mask.bit_count()
        return free * sum(share for share, number in zip(shares, fits, strict=True) if not number)

    def cost(state: State, move: Move) -> Cost:
        table, usage, _ = state
        return (unusable(table, move.after) - unusable(table, usage), move.free)

    return cost


def kube(fleet: Fleet) -> Chooser:
    """The node with the fewest pods, and there the first devices."""

    def choose(name: str, count: int) -> Sequence[Device] | None:
        for node in sorted(range(len(fleet.nodes)), key=fleet.pods.__getitem__):
            found = list[Device]()
            for gpu in fleet.nodes[node]:
                table, usage, _ = fleet.boards[gpu].state
                profile = table.geometry.by_name(name)
                while profile is not None and len(found) < count:
                    moves = table.moves(usage, profile)
                    if not moves:
                        break
                    found.append(Device(gpu, profile, moves[0]))
                    usage = moves[0].after
            if len(found) == count:
                return found
        return None

    return choose


def steered(fleet: Fleet) -> Chooser:
    """The node whose next devices cost least by the default policy.

    kube-scheduler takes the first free ones of the node, in the published order.
    """
    price = judge(fleet, POLICIES["sws"])

    def first(gpus: Sequence[int], name: str, count: int) -> tuple[Cost, list[Device]]:
        found, total = list[Device](), Cost()
        for gpu in gpus:
            table, usage, instances = fleet.boards[gpu].state
            profile = table.geometry.by_name(name)
            if profile is None:
                continue
            for place in placements_in_order(table.geometry, profile):
                free = {move.placement: move for move in table.moves(usage, profile)}
                if place in free and len(found) < count:
                    cost = price((table, usage, instances), free[place])
                    total = tuple(map(add, total, cost)) if total else cost
                    found.append(Device(gpu, profile, free[place]))
                    usage, instances = free[place].after, instances + 1
        return total, found

    def choose(name: str, count: int) -> Sequence[Device] | None:
        unlike = {tuple(fleet.boards[g].state for g in gpus): gpus for gpus in fleet.nodes[::-1]}
        each = [first(gpus, name, count) for gpus in sorted(unlike.values())]
        enough = [(cost, found) for cost, found in each if len(found) == count]
        return min(enough, key=itemgetter(0))[1] if enough else None

    return choose


def _of_product(name: str) -> Callable[[Fleet], Chooser]:
    return lambda fleet: Cheapest(fleet, judge(fleet, POLICIES[name]), changes=name == "sws")


PEERS: Mapping[str, Callable[[Fleet], Chooser]] = {
    "kube": kube,
    "steered": steered,
    "first-fit": lambda fleet: Cheapest(fleet, first_fit, changes=False),
    "mfi": lambda fleet: Cheapest(fleet, mfi, changes=False),
    "fgd": lambda fleet: Cheapest(fleet, fgd(fleet)),
    "scarcity": lambda fleet: Cheapest(fleet, scarcity(fleet)),
    **{name: _of_product(name) for name in POLICIES},
}
"""By name, what makes a way to place slices on a fleet."""
