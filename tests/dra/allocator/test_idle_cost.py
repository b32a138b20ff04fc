"""Idle slices in the choice of a placement: used again, else as good as free room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.allocator.moves import MoveTable
from dra.allocator.score import (
    POLICIES,
    Census,
    Cost,
    Demand,
    Situation,
    find_policy,
    scarcity_weights,
)
from dra.gpu.geometry import EMPTY, Occupant, Placement, Usage
from dra.gpu.inventory import IdleInstance
from tests.dra.gpus import A100

TABLE = MoveTable(A100)
Idle = tuple[IdleInstance, ...]


def idle(profile: str, start: int, namespace: str = "ours") -> Idle:
    known = A100.by_name(profile)
    assert known is not None
    return (IdleInstance(Placement(start, known.memory_slices), namespace, known.id),)


def used(profile: str, start: int) -> Usage:
    [here] = idle(profile, start)
    return A100.usage([Occupant(here.placement, here.profile_id)])


def ranked(
    policy: str, gpus: list[tuple[Usage, Idle]], profile: str
) -> list[tuple[Cost, int, Placement]]:
    """Costs of the placements on the GPUs, the best first, for a claim of the namespace "ours"."""
    census, wanted = Census(TABLE), A100.by_name(profile)
    assert wanted is not None
    for usage, _ in gpus:
        census.add(usage)
    weights = scarcity_weights(census, Demand().shares(A100))
    judge = find_policy(policy, namespace="ours", idle=True)
    return sorted(
        (judge(Situation(usage, usage.mask.bit_count(), weights, kept), move), n, move.placement)
        for n, (usage, kept) in enumerate(gpus)
        for move in TABLE.moves(usage, wanted)
    )


FREE: tuple[Usage, Idle] = (EMPTY, ())
MANY = [FREE] * 40

CHOICES = {
    "used again, wherever it lies": (
        ("sws", [*MANY, (EMPTY, idle("1g.5gb", 0))], "1g.5gb"),
        (40, 0),
    ),
    "used again, on a GPU that is not the fullest": (
        ("sws", [*MANY, (used("1g.5gb", 6), ()), (EMPTY, idle("1g.5gb", 2))], "1g.5gb"),
        (41, 2),
    ),
    "not where that takes the last room of a large profile": (
        ("sws", [(EMPTY, idle("1g.5gb", 5)), (used("1g.5gb", 6), ())], "1g.5gb"),
        (1, 4),
    ),
    "another namespace's is not used, and not destroyed": (
        ("sws", [(EMPTY, idle("3g.20gb", 4, "theirs")), *MANY], "3g.20gb"),
        (1, 4),
    ),
    "of another profile, it is not used, and not destroyed": (
        ("sws", [(EMPTY, idle("1g.5gb+me", 4)), *MANY], "1g.5gb"),
        (0, 5),
    ),
    "at the same start with another size, it is not used": (
        ("sws", [(EMPTY, idle("1g.10gb", 4)), *MANY], "1g.5gb"),
        (1, 4),
    ),
    "destroyed sooner than a GPU is broken": (
        ("sws", [FREE, (used("3g.20gb", 4), idle("2g.10gb", 0, "theirs"))], "4g.20gb"),
        (1, 0),
    ),
    "destroyed sooner than a fuller choice of best-fit is left": (
        ("best-fit", [FREE, (used("3g.20gb", 0), idle("3g.20gb", 4, "theirs"))], "2g.10gb"),
        (1, 4),
    ),
    "best-fit: the fullest GPU goes before one that has it": (
        ("best-fit", [(EMPTY, idle("2g.10gb", 4)), (used("3g.20gb", 0), ())], "2g.10gb"),
        (1, 4),
    ),
    "best-fit: used again on one of the fullest": (
        ("best-fit", [FREE, FREE, (EMPTY, idle("2g.10gb", 4))], "2g.10gb"),
        (2, 4),
    ),
    "spread: used again on one of the emptiest": (
        ("spread", [FREE, (EMPTY, idle("2g.10gb", 4))], "2g.10gb"),
        (1, 4),
    ),
    "spread: the emptiest GPU goes before one that has it": (
        ("spread", [FREE, (used("3g.20gb", 0), idle("2g.10gb", 4))], "2g.10gb"),
        (0, 4),
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_a_placement_is_chosen_with_regard_to_idle_slices(case: str) -> None:
    (policy, gpus, profile), expected = CHOICES[case]
    _, gpu, placement = ranked(policy, gpus, profile)[0]
    assert (gpu, placement.start) == expected


KEPT = st.lists(
    st.builds(
        lambda profile, start, namespace: idle(profile, start, namespace)[0],
        st.sampled_from([p.name for p in A100.profiles]),
        st.integers(0, 7),
        st.sampled_from(["ours", "theirs"]),
    ),
    max_size=4,
).map(tuple)


@given(
    gpus=st.lists(st.tuples(st.sampled_from([EMPTY, used("3g.20gb", 0)]), KEPT), max_size=4),
    profile=st.sampled_from([p.name for p in A100.profiles]),
    policy=st.sampled_from(sorted(POLICIES)),
)
def test_idle_slices_take_no_placement_away(
    gpus: list[tuple[Usage, Idle]], profile: str, policy: str
) -> None:
    with_idle = {found[1:] for found in ranked(policy, gpus, profile)}
    without = ranked(policy, [(usage, ()) for usage, _ in gpus], profile)
    assert with_idle == {found[1:] for found in without}
