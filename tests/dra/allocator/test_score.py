from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from dra.allocator import gpustate, moves
from dra.allocator.moves import MoveTable
from dra.allocator.score import (
    POLICIES,
    Census,
    Demand,
    Policy,
    Situation,
    best_fit,
    scarcity_weights,
    spread,
)
from dra.gpu.geometry import EMPTY, Occupant, Placement, Usage
from tests.controller.helpers.objects import gpu, with_gpus
from tests.dra.gpus import A100


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
