from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.allocator.scoring.moves import MoveTable
from dra.allocator.scoring.score import (
    POLICIES,
    Demand,
    Situation,
    Weights,
    first_fit,
    scarcity_weights,
    sws,
)
from dra.gpu.geometry import EMPTY, Occupant, Profile, Usage
from tests.dra.gpus import A100

SHARES = Demand().shares(A100)
TABLE = MoveTable(A100)
NO_SCARCITY = Weights((0.0,) * len(A100.profiles), TABLE.every)


def filled(
    steps: list[tuple[int, int, int]], gpus: int
) -> tuple[GeometryIndex, dict[GpuId, list[Usage]]]:
    """An index whose GPUs went through random placements, and the usages each went through."""
    index = GeometryIndex(TABLE)
    history = {GpuId(f"node-{i // 2}", i % 2): [EMPTY] for i in range(gpus)}
    for gpu in history:
        index.put(gpu, EMPTY, instances=0)
    for which, profile_index, move_index in steps:
        gpu = list(history)[which % gpus]
        profile = A100.profiles[profile_index % len(A100.profiles)]
        moves = TABLE.moves(history[gpu][-1], profile)
        if moves:
            after = moves[move_index % len(moves)].after
            history[gpu].append(after)
            index.put(gpu, after, instances=len(history[gpu]) - 1)
    return index, history


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), max_size=25)


@given(steps=STEPS, profile=st.sampled_from(A100.profiles), name=st.sampled_from(sorted(POLICIES)))
def test_offers_are_all_placements_in_the_order_of_the_policy(
    steps: list[tuple[int, int, int]], profile: Profile, name: str
) -> None:
    index, history = filled(steps, 5)
    policy = POLICIES[name]
    weights = scarcity_weights(index.census, SHARES)
    expected = sorted(
        (
            policy(Situation(seen[-1], len(seen) - 1, weights), move),
            gpu,
            move.placement.start,
        )
        for gpu, seen in history.items()
        for move in TABLE.moves(seen[-1], profile)
    )
    offers = [
        (o.cost, o.gpu, o.move.placement.start)
        for o in index.ranked_moves(profile, policy, weights)
    ]
    assert offers == expected


@given(steps=STEPS)
def test_the_census_is_that_of_the_gpus_in_it(steps: list[tuple[int, int, int]]) -> None:
    index, history = filled(steps, 4)
    totals = [
        sum(column)
        for column in zip(*(TABLE.feasible(h[-1]) for h in history.values()), strict=True)
    ]
    assert index.census.feasible == totals
    assert index.census.gpus == len(index) == 4
    for gpu in history:
        assert index.usage(gpu) == history[gpu][-1]
        index.drop(gpu)
        index.drop(gpu)
    assert index.census.gpus == len(index) == 0
    assert index.usage(GpuId("node-0", 0)) is None


def test_gpus_of_one_state_are_offered_by_node_and_number() -> None:
    index = GeometryIndex(TABLE)
    for node, minor in (("b", 0), ("a", 10), ("a", 2)):
        index.put(GpuId(node, minor), EMPTY, instances=0)
    seven = A100.profiles[-1]
    for policy in (sws, first_fit):
        order = [(o.gpu.node, o.gpu.minor) for o in index.ranked_moves(seven, policy, NO_SCARCITY)]
        assert order == [("a", 2), ("a", 10), ("b", 0)]


def test_a_full_gpu_offers_nothing() -> None:
    index = GeometryIndex(TABLE)
    seven = A100.profiles[-1]
    index.put(GpuId("a", 0), A100.usage([Occupant(seven.placements[0], seven.id)]), instances=1)
    assert list(index.ranked_moves(A100.profiles[0], sws, NO_SCARCITY)) == []
