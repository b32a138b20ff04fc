"""Bounds on all policies for a sequence of requests: a linear relaxation that knows the future.

It may take any part of a request, may refuse one for the sake of a later one, and may pack all
slices of a fleet anew at any time: of a product with ``n`` GPUs, what is there at a time lies in
``n`` times the convex hull of what one GPU can hold. That hull has few facets (four of an A100:
memory, compute, 4g and 7g, and halves beside each other), which are the constraints, at each time
at which the most is there. Of the requests that count it accepts the most memory slices, on a fleet
that is empty when the first of them comes. So the bound holds for each policy, also for one that
looks ahead and moves pods at will.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate

from scipy.optimize import linprog
from scipy.sparse import csr_matrix
from scipy.spatial import ConvexHull

from dra.allocator.moves import MoveTable, move_table
from dra.gpu.geometry import EMPTY, Geometry, Usage
from hack.bench.play import Ask, Figures
from hack.bench.traffic import Scene

_DIGITS, _NEARLY = 9, 1e-6


@cache
def facets(geometry: Geometry) -> tuple[tuple[float, ...], ...]:
    """Per facet, by profile of the geometry, the part of a GPU that a slice takes; at most one."""
    points = sorted(_holds(move_table(geometry)))
    found = set[tuple[float, ...]]()
    for *normal, offset in ConvexHull(points).equations:
        if offset < -_NEARLY:
            found.add(tuple(round(float(n / -offset), _DIGITS) + 0.0 for n in normal))
    return tuple(sorted(f for f in found if min(f) >= 0.0))


def _holds(table: MoveTable) -> set[tuple[int, ...]]:
    """Numbers of slices, by profile, that one GPU can hold together."""
    profiles = table.geometry.profiles
    todo: list[tuple[Usage, tuple[int, ...]]] = [(EMPTY, (0,) * len(profiles))]
    seen = {*todo}
    while todo:
        usage, held = todo.pop()
        for index, profile in enumerate(profiles):
            for move in table.moves(usage, profile):
                more = move.after, tuple(n + (i == index) for i, n in enumerate(held))
                if more not in seen:
                    seen.add(more)
                    todo.append(more)
    return {held for _, held in seen}


def most_slices(
    asks: Sequence[Ask], geometry: Geometry, gpus: int, *, first: Sequence[Ask] = ()
) -> float:
    """The most memory slices of the requests for profiles of ``geometry`` that fit on its GPUs.

    ``first``: requests at the start of ``asks``, of which as many slices as possible are accepted.
    """
    index = {p.name: n for n, p in enumerate(geometry.profiles)}
    wanted = [a for a in asks if a.profile in index]
    if not wanted:
        return 0.0
    least = most_slices(first, geometry, gpus) if first else 0.0
    rows, columns, parts, row = list[int](), list[int](), list[float](), 0
    for together in _crowds(wanted):
        for facet in facets(geometry):
            taken = [(n, wanted[n].count * facet[index[wanted[n].profile]]) for n in together]
            if sum(part for _, part in taken) > gpus:
                rows += [row] * len(taken)
                columns += [n for n, _ in taken]
                parts += [part for _, part in taken]
                row += 1
    slices = [a.count * geometry.sizes[index[a.profile]] for a in wanted]
    if not row:
        return float(sum(slices))
    worth = [-float(number) for number in slices]
    early = sum(a.profile in index for a in first)
    rows, columns, parts = rows + [row] * early, [*columns, *range(early)], parts + worth[:early]
    matrix = csr_matrix((parts, (rows, columns)), shape=(row + 1, len(wanted)))
    limits = [float(gpus)] * row + [_NEARLY - least]
    result = linprog(worth, A_ub=matrix, b_ub=limits, bounds=(0, 1))
    if not result.success:
        raise ArithmeticError(f"the bound was not found: {result.message}")
    return float(-result.fun)


def _crowds(asks: Sequence[Ask]) -> list[list[int]]:
    """The sets of requests that would be there together and are in no larger one, by index."""
    changes = list[tuple[float, int, int]]()
    for number, ask in enumerate(asks):
        changes.append((ask.at, 1, number))
        if ask.lasts is not None:
            changes.append((ask.at + ask.lasts, 0, number))
    found, there, grew = list[list[int]](), set[int](), False
    for _, arrives, number in sorted(changes):
        if arrives:
            there.add(number)
        else:
            if grew:
                found.append(sorted(there))
            there.discard(number)
        grew = bool(arrives)
    return [*found, sorted(there)] if grew else found


def bounds(scene: Scene) -> Figures:
    """Bounds on a scene's accepted memory slices and unused GPUs; none where requests queue.

    ``possible``: of any policy. ``moving``: of one that takes whoever fits, and moves all others.
    ``early``, where nothing leaves and more is asked for than there is: of any policy that accepts
    the most possible of the first requests, those for as many slices as there are.
    """
    if scene.queues:
        return {}
    shapes = Counter(shape for node in scene.nodes for shape in node)
    wanted = [ask for ask in scene.asks if ask.at >= scene.since]
    by_size = {p.name: p.memory_slices for shape in shapes for p in shape.profiles}
    asked = sum(by_size[ask.profile] * ask.count for ask in wanted)
    most = sum(most_slices(wanted, shape, gpus) for shape, gpus in shapes.items())
    early = _early(scene, by_size)
    later = sum(most_slices(wanted, s, gpus, first=early) for s, gpus in shapes.items())
    taken, unused = 0.0, 0.0
    for shape, gpus in shapes.items():
        more, left = _moving(scene.asks, shape, gpus, since=scene.since)
        taken, unused = taken + more, unused + left
    return {
        "possible slices": 100 * most / asked,
        "moving slices": 100 * taken / asked,
        "moving unused": unused,
    } | ({"early slices": 100 * later / asked} if early else {})


def _early(scene: Scene, by_size: Mapping[str, int]) -> Sequence[Ask]:
    """The first requests of a scene in which nothing leaves, for as many slices as there are."""
    there = sum(shape.memory_slices for node in scene.nodes for shape in node)
    asked = list(accumulate(by_size[ask.profile] * ask.count for ask in scene.asks))
    is_full = asked[-1] > there and all(ask.lasts is None for ask in scene.asks)
    return scene.asks[: bisect_right(asked, there)] if is_full else ()


def _moving(
    asks: Sequence[Ask], geometry: Geometry, gpus: int, *, since: float
) -> tuple[float, float]:
    """Memory slices accepted, and GPUs unused as a mean over time, where whoever fits is taken.

    Both are upper bounds, as what is within the facets may not fit as it is.
    """
    index = {p.name: n for n, p in enumerate(geometry.profiles)}
    needs = list(zip(*facets(geometry), strict=True))
    taken = [0.0] * len(facets(geometry))
    ends: list[tuple[float, Ask]] = []
    slices = area = last = 0.0

    def pass_time(until: float) -> None:
        nonlocal area, last
        used = math.ceil(max(taken) - _NEARLY)
        area += (gpus - used) * max(0.0, until - max(last, since))
        last = until

    def count(ask: Ask, sign: int) -> None:
        for facet, part in enumerate(needs[index[ask.profile]]):
            taken[facet] += sign * ask.count * part

    for ask in (a for a in asks if a.profile in index):
        while ends and ends[0][0] <= ask.at:
            end, over = heapq.heappop(ends)
            pass_time(end)
            count(over, -1)
        pass_time(ask.at)
        count(ask, 1)
        if max(taken) > gpus + _NEARLY:
            count(ask, -1)
            continue
        if ask.lasts is not None:
            heapq.heappush(ends, (ask.at + ask.lasts, ask))
        if ask.at >= since:
            slices += ask.count * geometry.sizes[index[ask.profile]]
    return slices, area / (last - since) if last > since else 0.0
