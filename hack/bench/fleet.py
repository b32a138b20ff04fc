"""A fleet of GPUs for the benchmark of policies: the product's moves and costs, nothing else.

It decides as ``dra.allocator.search`` does where claims are alone and nodes have no other limits,
which ``tests/hack/test_bench.py`` compares, and takes a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import add, itemgetter
from typing import NamedTuple

from dra.allocator.moves import Move, MoveTable, move_table
from dra.allocator.score import Census, Cost, Demand, Policy, Situation, Weights, scarcity_weights
from dra.gpu.geometry import EMPTY, Counts, Geometry, Profile, Usage

State = tuple[MoveTable, Usage, int]
"""The state of a GPU: its table, its usage, and the number of its instances."""


class Device(NamedTuple):
    """A slice of a GPU, which has an index in the fleet."""

    gpu: int
    profile: Profile
    move: Move


@dataclass(slots=True, eq=False)
class Board:
    """One GPU; ``masks``: those of its instances."""

    table: MoveTable
    node: int
    usage: Usage = EMPTY
    masks: list[int] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The state that decides what a policy thinks of it."""
        return self.table, self.usage, len(self.masks)


class Fleet:
    """Nodes of GPUs, and the mix that was placed on them. Nodes and GPUs are in name order."""

    def __init__(self, nodes: Sequence[Sequence[Geometry]]) -> None:
        self.boards = [Board(move_table(s), n) for n, shapes in enumerate(nodes) for s in shapes]
        self.nodes: list[list[int]] = [[] for _ in nodes]
        for index, board in enumerate(self.boards):
            self.nodes[board.node].append(index)
        self.pods = [0] * len(nodes)
        self.changes = 0
        self.demand = Demand()
        self.groups: dict[State, set[int]] = {}
        self._census: dict[MoveTable, Census] = {}
        self._weights: dict[MoveTable, Weights] = {}
        for index in range(len(self.boards)):
            self._count(index, 1)

    def size(self, name: str) -> int:
        """Memory slices of a profile, on the first GPU that has it."""
        for table in self._census:
            profile = table.geometry.by_name(name)
            if profile is not None:
                return profile.memory_slices
        raise LookupError(name)

    @property
    def unused(self) -> int:
        """GPUs without any slice."""
        return sum(len(m) for (_, usage, _), m in self.groups.items() if usage == EMPTY)

    def census(self, table: MoveTable) -> Census:
        """GPUs of a geometry, and what fits there."""
        return self._census[table]

    def weights(self, table: MoveTable) -> Weights:
        """As of ``dra.allocator.fleet.Fleet``."""
        known = self._weights.get(table)
        if known is None:
            shares = self.demand.shares(table.geometry)
            known = self._weights[table] = scarcity_weights(self._census[table], shares)
        return known

    def in_the_way(self, name: str) -> int | None:
        """The fewest slices in the place of one of a profile; None if less than it takes is free.

        Whether these fit elsewhere is not asked.
        """
        free, fewest = 0, list[int]()
        for board in self.boards:
            profile = board.table.geometry.by_name(name)
            if profile is None:
                continue
            free += board.table.geometry.memory_slices - board.usage.mask.bit_count()
            fewest += [
                sum(bool(mask & place.mask) for mask in board.masks) for place in profile.placements
            ]
        return min(fewest) if free >= self.size(name) else None

    def take(self, devices: Sequence[Device]) -> None:
        """Give out slices, in this order, as one pod."""
        for gpu, profile, move in devices:
            self._count(gpu, -1)
            board = self.boards[gpu]
            board.usage = move.after
            board.masks.append(move.placement.mask)
            self._count(gpu, 1)
            self.demand.observe(profile.name)
        self._weights.clear()
        self.changes += 1
        self.pods[self.boards[devices[0].gpu].node] += 1

    def give_back(self, devices: Sequence[Device]) -> None:
        """Take back what ``take`` gave out."""
        for gpu, profile, move in devices:
            self._count(gpu, -1)
            board = self.boards[gpu]
            mask, counts = board.usage
            left = Counts._make(map(int.__sub__, counts, profile.counts))
            board.usage = Usage(mask & ~move.placement.mask, left)
            board.masks.remove(move.placement.mask)
            self._count(gpu, 1)
        self._weights.clear()
        self.changes += 1
        self.pods[self.boards[devices[0].gpu].node] -= 1

    def _count(self, index: int, number: int) -> None:
        board = self.boards[index]
        if number > 0:
            self.groups.setdefault(board.state, set()).add(index)
        else:
            members = self.groups[board.state]
            members.remove(index)
            if not members:
                del self.groups[board.state]
        self._census.setdefault(board.table, Census(board.table)).add(board.usage, count=number)


Judge = Callable[[State, Move], Cost]
"""The price of a move on a GPU in a state."""

Chooser = Callable[[str, int], Sequence[Device] | None]
"""Slices of a profile, by its name, and their number: all on one node; None where is no room."""


def judge(fleet: Fleet, policy: Policy) -> Judge:
    """A policy of the product."""

    def cost(state: State, move: Move) -> Cost:
        table, usage, instances = state
        return policy(Situation(usage, instances, fleet.weights(table)), move)

    return cost


class Cheapest:
    """The choice of the product's allocator by a judge's prices.

    ``changes``: these depend on more than state and move.
    """

    def __init__(self, fleet: Fleet, judge: Judge, *, changes: bool = True) -> None:
        self._fleet, self._judge, self._changes = fleet, judge, changes
        self._known: dict[tuple[State, str], _Priced | None] = {}

    def __call__(self, name: str, count: int) -> Sequence[Device] | None:
        """Slices of a profile: the cheapest, of equals those on the first GPUs."""
        return self._one(name) if count == 1 else self._several(name, count)

    def _best(self, state: State, name: str) -> _Priced | None:
        if not self._changes and (state, name) in self._known:
            return self._known[state, name]
        table, usage, _ = state
        profile = table.geometry.by_name(name)
        moves = table.moves(usage, profile) if profile is not None else ()
        priced = ((self._judge(state, move), move) for move in moves)
        found = self._known[state, name] = min(priced, key=itemgetter(0), default=None)
        return found

    def _one(self, name: str) -> Sequence[Device] | None:
        least: Cost | None = None
        tied: list[tuple[State, Move]] = []
        for state in self._fleet.groups:
            found = self._best(state, name)
            if found is None or (least is not None and found[0] > least):
                continue
            if found[0] != least:
                least, tied = found[0], []
            tied.append((state, found[1]))
        if not tied:
            return None
        firsts = [min(self._fleet.groups[state]) for state, _ in tied]
        gpu = min(firsts)
        return [self._device(gpu, name, tied[firsts.index(gpu)][1])]

    def _several(self, name: str, count: int) -> Sequence[Device] | None:
        sets = dict[State, list[_Set]]()
        alike = dict[tuple[State, ...], int]()
        for number, gpus in enumerate(self._fleet.nodes):
            alike.setdefault(tuple(self._fleet.boards[g].state for g in gpus), number)
        chosen: tuple[Cost, int, list[tuple[Move, ...]]] | None = None
        for states, number in alike.items():
            for state in states:
                if state not in sets:
                    sets[state] = _sets(self._judge, state, name, count)
            found = _combined([sets[state] for state in states], count)
            if found is not None and (chosen is None or found[0] < chosen[0]):
                chosen = found[0], number, found[1]
        if chosen is None:
            return None
        _, number, made = chosen
        return [
            self._device(gpu, name, move)
            for gpu, moves in zip(self._fleet.nodes[number], made, strict=True)
            for move in moves
        ]

    def _device(self, gpu: int, name: str, move: Move) -> Device:
        profile = self._fleet.boards[gpu].table.geometry.by_name(name)
        if profile is None:
            raise LookupError(name)
        return Device(gpu, profile, move)


_Priced = tuple[Cost, Move]
_Set = tuple[Cost, tuple[Move, ...]]


def _sets(judge: Judge, state: State, name: str, count: int) -> list[_Set]:
    """The cheapest way to make 0, 1, … slices on a GPU in ``state``, up to ``count``."""
    table, usage, instances = state
    profile = table.geometry.by_name(name)
    layer: dict[Usage, tuple[Cost, tuple[Move, ...]]] = {usage: ((), ())}
    found = [layer[usage]]
    while profile is not None and len(found) <= count:
        following: dict[Usage, tuple[Cost, tuple[Move, ...]]] = {}
        for before, (cost, made) in layer.items():
            seen = table, before, instances + len(made)
            for move in table.moves(before, profile):
                price = judge(seen, move)
                total = tuple(map(add, cost, price)) if cost else price
                known = following.get(move.after)
                if known is None or total < known[0]:
                    following[move.after] = total, (*made, move)
        if not following:
            break
        found.append(min(following.values(), key=itemgetter(0)))
        layer = following
    return found


def _combined(gpus: Sequence[list[_Set]], count: int) -> tuple[Cost, list[tuple[Move, ...]]] | None:
    """The cheapest way to make ``count`` slices on these GPUs; earlier ones give more of equals."""
    reached: dict[int, tuple[Cost, list[tuple[Move, ...]]]] = {0: ((), [])}
    for ways in gpus:
        following: dict[int, tuple[Cost, list[tuple[Move, ...]]]] = {}
        for had in sorted(reached, reverse=True):
            cost, made = reached[had]
            for more, (price, moves) in enumerate(ways[: count - had + 1]):
                total = tuple(map(add, cost, price)) if cost and price else cost or price
                known = following.get(had + more)
                if known is None or total < known[0]:
                    following[had + more] = total, [*made, moves]
        reached = following
    return reached.get(count)
