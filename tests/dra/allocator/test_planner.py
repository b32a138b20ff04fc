"""Fewest moves: what is planned is what trying everything finds, and each step has room."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import pytest

from dra.allocator.gpustate import GpuId
from dra.allocator.ongoing import Ongoing, Steps
from dra.allocator.planner import STEPS, Plan, Planned, Step, find_plan, plan
from dra.allocator.sites import Ending, Mover
from dra.gpu.geometry import Geometry, Occupant, Placement, Usage
from dra.gpu.inventory import ClaimRef, Gpu, Instance, InstanceState
from tests.controller.helpers.objects import gpu, inventory, with_gpus
from tests.dra.gpus import A100, THIRDS, profile

Board = dict[GpuId, frozenset[tuple[str, Occupant]]]
"""Holders and their places by GPU; the name of one that may not be moved begins with a dash."""

SEEDS = int(os.environ.get("PLANNER_SEEDS", "500"))
MOST, MOST_ENDED = 2, 4
"""Pods that leave at most, in plans that are tried; those where all that leave end."""


def random_table(draw: random.Random) -> Geometry:
    """A GPU that nobody sells, on which what is counted often runs out before memory slices.

    Every slice takes one of the copy engines: in half of the tables there are two to four of them.
    """
    slices, most = draw.randrange(4, 9), draw.choice((8, 8, draw.randrange(2, 5)))
    profiles = []
    for number, size in enumerate(draw.sample(range(1, slices), draw.randrange(2, 4))):
        starts = sorted(draw.sample(range(slices - size + 1), draw.randrange(1, slices - size + 2)))
        engines = {"copy_engines": 1, "decoders": draw.randrange(3)}
        compute = draw.randrange(1, size + 2)
        name = f"{number}x.{size}gb"
        profiles.append(
            profile(name, number, slices=compute, memory=size, starts=starts, size=size, **engines)
        )
    whole = profile(
        "all", 9, slices=slices, memory=9, starts=[0], size=slices, copy_engines=most, decoders=4
    )
    return Geometry((*profiles, whole))


def random_board(draw: random.Random, shape: Geometry) -> tuple[list[Gpu], list[Mover]]:
    """GPUs, and the movers on them: all are moved, all are ended, or some of each."""
    gpus, movers, ends_share = [], list[Mover](), draw.choice((0.0, 0.0, 0.5, 1.0))
    for minor in range(draw.choice((1, 2, 2, 3))):
        usage, instances = Usage(), list[Instance]()
        for _ in range(draw.randrange(6)):
            free = [(p, q) for p in shape.profiles for q in shape.free_placements(usage, p)]
            small = [(p, q) for p, q in free if 2 * q.size <= shape.memory_slices]
            if not small:
                break
            profile, placement = draw.choice(small)
            occupant = Occupant(placement, profile.id)
            usage = shape.add(usage, occupant)
            uid = f"u-{minor}-{placement.start}" if draw.random() < 0.8 else ""
            claim = ClaimRef("default", f"c-{uid}", uid) if uid else None
            state = InstanceState.PREPARED if uid else InstanceState.FOREIGN
            instances.append(Instance(placement, state, claim=claim, profile_id=profile.id))
            if uid:
                site, since = GpuId("node-a", minor), float(draw.randrange(9))
                ending = Ending(draw.randrange(4), is_against_budget=draw.random() < 0.3)
                ends = ending if draw.random() < ends_share else None
                movers.append(Mover(uid, site, profile.name, occupant, since, ending=ends))
        gpus.append(replace(gpu(minor, geometry=shape), instances=tuple(instances)))
    return gpus, movers


def board_of(gpus: Sequence[Gpu]) -> Board:
    return {
        GpuId("node-a", g.minor): frozenset(
            (i.claim.uid if i.claim else f"-{i.placement}", Occupant(i.placement, i.profile_id))
            for i in g.instances
        )
        for g in gpus
    }


def free(board: Board, shape: Geometry, profile: str) -> Iterator[tuple[GpuId, Occupant]]:
    known = shape.by_name(profile)
    assert known is not None
    for site, held in board.items():
        usage = shape.usage(occupant for _, occupant in held)
        for placement in shape.free_placements(usage, known):
            yield site, Occupant(placement, known.id)


def put(board: Board, name: str, site: GpuId, occupant: Occupant) -> Board:
    return {**board, site: board[site] | {(name, occupant)}}


def without(board: Board, mover: Mover) -> Board:
    return {**board, mover.gpu: board[mover.gpu] - {(mover.uid, mover.occupant)}}


def fit(board: Board, shape: Geometry, asked: Sequence[str]) -> bool:
    if not asked:
        return True
    return any(
        fit(put(board, f"asked-{len(asked)}", *place), shape, asked[1:])
        for place in free(board, shape, asked[0])
    )


def reached(board: Board, shape: Geometry, left: frozenset[Mover], asked: Sequence[str]) -> bool:
    """True if moving all that are left, each once and in any order, makes room."""
    if not left:
        return fit(board, shape, asked)
    for mover in left:
        gone = without(board, mover)
        if mover.ending is not None:
            return reached(gone, shape, left - {mover}, asked)
        for place in free(gone, shape, mover.profile):
            if reached(put(gone, mover.uid, *place), shape, left - {mover}, asked):
                return True
    return False


def cost(movers: Sequence[Mover], latest: float) -> tuple[float, ...]:
    """The order of kube-scheduler, of those who end; then the fewest, smallest, youngest."""
    ended = [m.ending for m in movers if m.ending is not None]
    priorities = [ending.priority for ending in ended]
    against = sum(ending.is_against_budget for ending in ended)
    ends = against, max(priorities, default=-inf), sum(2**31 + p for p in priorities)
    memory = sum(m.occupant.placement.size for m in movers)
    return (*ends, len(movers), memory, sum(latest - m.since for m in movers))


def cheaper(
    gpus: Sequence[Gpu], shape: Geometry, movers: Sequence[Mover], asked: Sequence[str]
) -> Iterator[tuple[float, ...]]:
    """The costs at which there is room once at most ``MOST`` left, in their order."""
    latest = max((m.since for m in movers), default=0.0)
    most = MOST if any(m.ending is None for m in movers) else MOST_ENDED
    every = (c for number in range(most + 1) for c in itertools.combinations(movers, number))
    for chosen in sorted(every, key=lambda c: cost(c, latest)):
        if reached(board_of(gpus), shape, frozenset(chosen), asked):
            yield cost(chosen, latest)


def carried_out(plan: Plan, gpus: Sequence[Gpu], shape: Geometry) -> None:
    """Each step has room when its turn comes, and nobody moves twice."""
    board, moved = board_of(gpus), set[str]()
    for mover in plan.ends:
        assert mover.ending is not None
        board = without(board, mover)
    for number, step in enumerate(plan.steps):
        if step.mover is not None:
            assert step.mover.uid not in moved
            assert step.mover.ending is None
            moved.add(step.mover.uid)
            board = without(board, step.mover)
        assert (step.gpu, step.occupant) in free(board, shape, step.profile)
        board = put(board, step.mover.uid if step.mover else f"asked-{number}", *at(step))


def at(step: Step) -> tuple[GpuId, Occupant]:
    return step.gpu, step.occupant


@pytest.mark.parametrize(
    ("profile", "start", "is_full"), [("1g.10gb", 0, True), ("1g.5gb", 3, False)]
)
def test_where_nobody_has_another_place_nothing_is_searched(
    profile: str, start: int, *, is_full: bool
) -> None:
    """One slice stays on each GPU; the others are of one profile, and lie everywhere or nowhere."""
    known, fleet, movers = A100.by_name(profile), with_gpus().fleet, list[Mover]()
    assert known is not None
    gpus = []
    for minor in range(4):
        instances = [Instance(Placement(start, 1), InstanceState.FOREIGN, profile_id=19)]
        for placement in known.placements if is_full else ():
            if placement.start >= 2:
                uid = f"u-{minor}-{placement.start}"
                ref, occupant = ClaimRef("default", uid, uid), Occupant(placement, known.id)
                made = Instance(placement, InstanceState.PREPARED, claim=ref, profile_id=known.id)
                instances.append(made)
                movers.append(Mover(uid, GpuId("node-a", minor), profile, occupant, 0.0))
        gpus.append(replace(gpu(minor), instances=tuple(instances)))
    fleet.set_inventory(inventory("node-a", *gpus))
    assert find_plan(fleet, ["3g.20gb"], movers, most=0).bounded is not is_full
    assert find_plan(fleet, ["7g.40gb"], movers, most=0) == Planned(None)


def test_a_plan_in_parts_is_that_in_one_go() -> None:
    fleet, most_parts = with_gpus().fleet, 0
    for seed in range(40):
        draw = random.Random(seed)
        gpus, movers = random_board(draw, A100)
        asked = draw.choices([p.name for p in A100.profiles], k=2)
        fleet.set_inventory(inventory("node-a", *gpus))
        steps, parts, found = Steps(), 0, None
        on = lambda state, movers=movers: [m for m in movers if m.gpu == state.id]  # noqa: E731
        ongoing = Ongoing(plan(fleet, asked, on, steps), steps)
        while found is None:
            found, parts = ongoing.go_on(steps=1), parts + 1
        assert found == find_plan(fleet, asked, movers), seed
        most_parts = max(most_parts, parts)
    assert most_parts > 20


@pytest.mark.parametrize("part", range(2))
def test_no_plan_is_better_than_what_is_found(part: int) -> None:
    moved = ended = bounded = 0
    fleet = with_gpus().fleet
    for seed in range(part, SEEDS, 2):
        draw = random.Random(seed)
        is_known = seed % 5 < 3
        shape = (THIRDS, A100, A100)[seed % 5] if is_known else random_table(draw)
        most = STEPS if is_known else 10 * STEPS
        gpus, movers = random_board(draw, shape)
        asked = draw.choices([p.name for p in shape.profiles], k=draw.choice((1, 1, 2)))
        asked.sort(key=lambda name: -(shape.by_name(name) or shape.profiles[0]).memory_slices)
        fleet.set_inventory(inventory("node-a", *gpus))
        found = find_plan(fleet, asked, movers, most=most)
        best = next(cheaper(gpus, shape, movers, asked), None)
        if found.plan is None:
            assert best is None, seed
            bounded += found.bounded
            continue
        carried_out(found.plan, gpus, shape)
        latest = max((m.since for m in movers), default=0.0)
        left = [*found.plan.ends, *(s.mover for s in found.plan.moves if s.mover)]
        mine = cost(left, latest)
        assert best is None or mine <= best, (seed, mine, best)
        assert mine == best or len(left) > MOST, (seed, mine, best)
        moved += bool(found.plan.moves)
        ended += bool(found.plan.ends)
    assert moved > 10
    assert ended > 10
    assert bounded <= 1
