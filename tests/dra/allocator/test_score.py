from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from dra.allocator import gpustate, moves
from dra.allocator.moves import Move, MoveTable, TooManyStatesError
from dra.allocator.score import (
    POLICIES,
    Census,
    Demand,
    Policy,
    Situation,
    Weights,
    best_fit,
    scarcity_weights,
    spread,
    sws,
)
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Usage
from tests.controller.helpers.objects import gpu, with_gpus
from tests.dra.gpus import A100, THIRDS


def choose(
    policy: Policy, gpus: list[Usage], name: str, before: Mapping[str, int] | None = None
) -> tuple[int, Placement]:
    """GPU index and placement that the policy prefers among the A100s ``gpus``.

    ``before``: requests by profile that came before. Each memory slice in use counts as an
    instance, since a usage does not tell how many there are.
    """
    table, demand = MoveTable(A100), Demand(memory=1e6)
    census = Census(table)
    for profile_name, count in (before or {}).items():
        for _ in range(count):
            demand.observe(profile_name)
    for usage in gpus:
        census.add(usage)
    weights = scarcity_weights(census, demand.shares(A100))
    profile = A100.by_name(name)
    assert profile is not None
    ranked = [
        (policy(Situation(u, u.mask.bit_count(), weights), m), i, m.placement)
        for i, u in enumerate(gpus)
        for m in table.moves(u, profile)
    ]
    _, index, placement = min(ranked)
    return index, placement


def usage(*wanted: tuple[int, int, int]) -> Usage:
    """Usage of an A100 with (profile id, start, size)."""
    return A100.usage(Occupant(Placement(start, size), i) for i, start, size in wanted)


def test_a_move_counts_the_placements_it_takes_from_each_profile() -> None:
    profile = A100.by_name("1g.5gb")
    assert profile is not None
    table = MoveTable(A100)
    moves = {m.placement.start: m for m in table.moves(EMPTY, profile)}
    by_name = dict(zip((p.name for p in A100.profiles), moves[0].loss, strict=True))
    assert by_name == {
        "1g.5gb": 1,
        "1g.5gb+me": 1,
        "1g.10gb": 1,
        "2g.10gb": 1,
        "3g.20gb": 1,
        "4g.20gb": 1,
        "7g.40gb": 1,
    }
    assert sum(moves[6].loss) < sum(moves[0].loss)


def test_slices_that_no_packing_can_use_are_waste() -> None:
    table = MoveTable(A100)
    seven = A100.by_name("1g.5gb")
    assert seven is not None
    almost_full = usage((19, 0, 1), (19, 1, 1), (19, 2, 1), (19, 3, 1), (19, 4, 1), (19, 5, 1))
    last = {m.placement.start: m for m in table.moves(almost_full, seven)}
    assert list(last) == [6]
    assert table.usable(almost_full, table.every) == 2, "1g.10gb at 6 would use both that are left"
    assert last[6].waste[table.every,] == 1


def strange_usages(number: int) -> list[Usage]:
    """Usages of A100s with foreign instances of no known profile, or where none can be."""
    draw, profiles = random.Random(1), [None, *(p.id for p in A100.profiles)]
    places = [Placement(start, size) for start in range(8) for size in range(1, 9 - start)]
    return [
        A100.usage(Occupant(draw.choice(places), draw.choice(profiles)) for _ in range(4))
        for _ in range(number)
    ]


def judged(table: MoveTable, usages: Iterable[Usage]) -> list[tuple[int, object]]:
    return [
        (
            table.usable(u, table.every),
            [(table.moves(u, p), table.most(u, p)) for p in A100.profiles],
        )
        for u in usages
    ]


def test_foreign_instances_bring_a_gpu_into_any_number_of_states() -> None:
    usages = strange_usages(12000)
    assert len({*usages}) > moves.MOST_STATES
    assert all(usable <= 8 for usable, _ in judged(MoveTable(A100), usages))


def test_what_is_known_of_states_is_bounded_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    usages, kept = strange_usages(600), list[int]()
    expected = judged(MoveTable(A100), usages)
    for bound in (moves.MOST_KNOWN, 300):
        table = MoveTable(A100)
        monkeypatch.setattr(moves, "MOST_KNOWN", bound)
        tracemalloc.start()
        assert all(judged(table, [u]) == [e] for u, e in zip(usages, expected, strict=True))
        kept.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert kept[1] < kept[0] / 3


def test_a_geometry_of_too_many_states_is_refused() -> None:
    places = tuple(Placement(start, 1) for start in range(12))
    one = replace(A100.profiles[0], placements=places)
    with pytest.raises(TooManyStatesError, match="2048"):
        MoveTable(Geometry((one, replace(one, id=1, name="12g", compute_slices=12))))


def test_a_slice_that_only_an_unwanted_profile_can_use_is_waste() -> None:
    table = MoveTable(A100)
    two = A100.by_name("2g.10gb")
    assert two is not None
    without = table.every & ~(1 << [p.name for p in A100.profiles].index("1g.10gb"))
    moves = {m.placement.start: m for m in table.moves(EMPTY, two)}
    assert [moves[4].waste[w,] for w in (table.every, without)] == [0, 1], "1g.10gb at 6 or 1g at 6"
    assert [moves[0].waste[w,] for w in (table.every, without)] == [0, 0]
    assert moves[4].waste[table.every, without] == 1 / 2, "the mean over sets of profiles"


PARTS = {"1g.5gb": 60, "1g.10gb": 60, "2g.10gb": 60}
"""Requests by profile; nobody asks for a whole GPU."""


def test_policies_choose_the_gpu_their_names_promise() -> None:
    gpus = [usage((19, 6, 1)), EMPTY, usage((9, 4, 4))]
    assert choose(best_fit, gpus, "2g.10gb")[0] == 2
    assert choose(spread, gpus, "2g.10gb")[0] == 1


def test_a_gpu_tells_policies_all_that_they_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a field that keeps its default a policy would see nothing."""
    told = list[set[str]]()

    def situation(*values: Any, **named: Any) -> Situation:
        told.append({*Situation._fields[: len(values)], *named})
        return Situation(*values, **named)

    monkeypatch.setattr(gpustate, "Situation", situation)
    with_gpus(gpu(0))
    assert told
    assert all(fields == {*Situation._fields} for fields in told)


def test_every_policy_that_the_configuration_names_exists() -> None:
    from typing import get_args

    from api.config import PlacementPolicy

    assert set(POLICIES) == set(get_args(PlacementPolicy)), (
        "POLICIES in dra/allocator/score.py and PlacementPolicy in api/config.py have to "
        "name the same policies: add the one that is missing"
    )


def test_demand_starts_uniform_over_sizes_and_learns() -> None:
    demand = Demand(memory=10)
    before = dict(zip((p.name for p in A100.profiles), demand.shares(A100), strict=True))
    assert before["1g.5gb+me"] == 0.0
    assert before["1g.5gb"] == before["7g.40gb"] == pytest.approx(1 / 6)
    demand.observe("7g.40gb")
    one = dict(zip((p.name for p in A100.profiles), demand.shares(A100), strict=True))
    assert one["7g.40gb"] == pytest.approx((1 + 1 / 6) / 2), "the start counts as one request"
    for _ in range(50):
        demand.observe("7g.40gb")
    after = dict(zip((p.name for p in A100.profiles), demand.shares(A100), strict=True))
    assert after["7g.40gb"] > 0.6
    assert sum(after.values()) == pytest.approx(1.0)


def test_among_equals_sws_takes_the_gpu_with_more_instances() -> None:
    move = Move(Placement(0, 1), 19, EMPTY, (0,), {(1,): 0}, 8)
    few, many = (Situation(EMPTY, n, Weights((1.0,), (1,))) for n in (1, 4))
    assert sws(many, move) < sws(few, move)


def test_a_profile_weighs_more_the_scarcer_it_is() -> None:
    table = MoveTable(A100)
    shares = Demand().shares(A100)
    plenty, scarce = Census(table), Census(table)
    plenty.add(EMPTY, count=100)
    scarce.add(EMPTY, count=1)
    scarce.add(usage((19, 0, 1)), count=99)
    seven = len(A100.profiles) - 1
    weight = scarcity_weights(scarce, shares).placements[seven]
    assert weight > 1.0 > scarcity_weights(plenty, shares).placements[seven]


def test_a_census_forgets_what_is_taken_away() -> None:
    census = Census(MoveTable(A100))
    census.add(EMPTY, count=3)
    census.add(usage((9, 4, 4)))
    census.add(EMPTY, count=-3)
    census.add(usage((9, 4, 4)), count=-1)
    assert census.gpus == 0
    assert set(census.feasible) == {0}


@pytest.mark.parametrize("geometry", [A100, THIRDS], ids=["a100", "thirds"])
def test_a_move_never_creates_room(geometry: Geometry) -> None:
    table = MoveTable(geometry)
    seen: set[Usage] = set()
    todo = [EMPTY]
    moves: list[Move] = []
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for profile in geometry.profiles:
            for move in table.moves(current, profile):
                moves.append(move)
                todo.append(move.after)
    assert all(n >= 0 for m in moves for n in m.loss)
    assert all(m.waste[table.every,] >= 0 for m in moves)
    assert len(seen) < 2000
