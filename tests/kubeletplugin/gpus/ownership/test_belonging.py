"""The rules by which an instance counts as an entry's, case by case."""

from __future__ import annotations

from uuid import NAMESPACE_OID, uuid5

import pytest

from kubeletplugin.gpus.ownership.belonging import (
    Continuity,
    Doubt,
    Evidence,
    Inside,
    doubt,
    is_unique,
)
from kubeletplugin.journal.entries import HELD, State

SAME, OTHER, UNKNOWN = Continuity.SAME, Continuity.OTHER, Continuity.UNKNOWN
PREPARED = Evidence(State.PREPARED, Inside.RECORDED)
LEFTOVER = Evidence(State.LEFTOVER, Inside.RECORDED, has_ci_id=False)
HALF = Evidence(State.GI_CREATED, Inside.NONE, has_ci_id=False, has_uuid=False)


def case(known: Evidence, answer: Doubt | None, **changes: object) -> tuple[Evidence, Doubt | None]:
    values = {name: getattr(known, name) for name in Evidence.__slots__} | changes
    return Evidence(**values), answer


CASES = {
    "a held claim's slice with the UUID on record": case(PREPARED, None),
    "the same, never removed": case(PREPARED, None, gpu_instance=SAME, compute_instance=SAME),
    "the same UUID, but removed since": case(PREPARED, Doubt.REMADE, compute_instance=OTHER),
    "the same UUID in a GPU instance that was removed since": case(
        PREPARED, Doubt.REMADE, gpu_instance=OTHER, unique=True
    ),
    "a slice that was seen gone and is there again": case(
        PREPARED, Doubt.WAS_GONE, state=State.LOST
    ),
    "it was only said to be gone": case(PREPARED, None, state=State.LOST, compute_instance=SAME),
    "it is there again with a UUID that is given once": case(
        PREPARED, None, state=State.LOST, unique=True
    ),
    "killed while it destroyed a slice": case(LEFTOVER, None, state=State.DESTROYING),
    "a leftover whose claim kubelet has let go": case(LEFTOVER, Doubt.ANYBODYS),
    "a leftover, never removed": case(LEFTOVER, None, compute_instance=SAME),
    "a leftover, removed since": case(LEFTOVER, Doubt.REMADE, compute_instance=OTHER),
    "a leftover with a UUID that is given once": case(LEFTOVER, None, unique=True),
    "a leftover of a Prepare that failed": case(LEFTOVER, Doubt.ANYBODYS, state=State.ORPHAN),
    "a leftover on a GPU that was lost": case(LEFTOVER, Doubt.ANYBODYS, state=State.TOMBSTONE),
    "a leftover of whose GPU instance alone it is known": case(
        LEFTOVER, Doubt.ANYBODYS, gpu_instance=SAME
    ),
    "half made": case(HALF, None),
    "half made, and exchanged": case(HALF, Doubt.REMADE, gpu_instance=OTHER),
    "only meant to be made": case(HALF, None, state=State.INTENT, has_gi_id=False),
    "its compute instance destroyed by us": case(HALF, None, state=State.CI_DESTROYED),
    "its compute instance destroyed by us, not recorded": case(
        PREPARED, None, inside=Inside.NONE, has_no_compute_instance=True
    ),
    "its compute instance destroyed by somebody": case(PREPARED, Doubt.BARE, inside=Inside.NONE),
    "a compute instance that this program may have made last": case(
        HALF, None, inside=Inside.STRANGE
    ),
    "the same, with processes in it": case(HALF, Doubt.BUSY, inside=Inside.STRANGE, busy=True),
    "the same, where processes cannot be seen": case(
        HALF, Doubt.UNSEEN, inside=Inside.STRANGE, blind=True
    ),
    "the same in a GPU instance that was never removed": case(
        HALF, None, inside=Inside.STRANGE, blind=True, gpu_instance=SAME
    ),
    "two compute instances": case(HALF, Doubt.STRANGE, inside=Inside.SEVERAL),
    "a compute instance where nothing was made yet": case(
        HALF, Doubt.STRANGE, state=State.INTENT, inside=Inside.STRANGE, has_gi_id=False
    ),
    "a compute instance in what we left bare": case(
        HALF, Doubt.STRANGE, state=State.CI_DESTROYED, inside=Inside.STRANGE
    ),
    "another compute instance in a held claim's slice": case(
        PREPARED, Doubt.STRANGE, inside=Inside.STRANGE
    ),
}


@pytest.mark.parametrize("known", CASES)
def test_whose_it_is(known: str) -> None:
    evidence, answer = CASES[known]
    assert doubt(evidence) is answer


@pytest.mark.parametrize("state", State)
def test_what_was_removed_since_never_counts_as_ours(state: State) -> None:
    for inside in Inside:
        assert doubt(Evidence(state, inside, gpu_instance=OTHER)) is Doubt.REMADE


@pytest.mark.parametrize("state", State)
def test_an_equal_uuid_alone_is_enough_only_while_the_claim_may_be_held(state: State) -> None:
    alone = doubt(Evidence(state, Inside.RECORDED))
    let_go = state in {State.LEFTOVER, State.ORPHAN, State.TOMBSTONE, State.LOST}
    assert (alone is not None) == let_go
    assert doubt(Evidence(state, Inside.RECORDED, compute_instance=SAME)) is None
    assert State.LOST in HELD


@pytest.mark.parametrize(
    ("uuid", "unique"),
    [
        ("MIG-2a2641f0-270f-486c-b9c9-0135677451c7", True),
        (f"MIG-{uuid5(NAMESPACE_OID, 'x')}", False),
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0", False),
        ("", False),
    ],
)
def test_only_a_random_uuid_is_given_once(uuid: str, unique: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert is_unique(uuid) is unique
