"""Descriptions of a GPU as they are published, case by case: instances, and reasons against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Instance, InstanceState
from dra.gpu.shares import Share
from kubeletplugin.gpus.gpu import Conflict, GpuUnit
from kubeletplugin.gpus.reader import describe
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.gpus import Card
from kubeletplugin.nvml.instances import GpuInstance

SMALL = Profile(19, "1g.5gb", 1, 4864, 14, (Placement(0, 1), Placement(4, 1)))
LARGE = Profile(9, "3g.20gb", 3, 19968, 42, (Placement(0, 4), Placement(4, 4)))
CARD = Card(
    "GPU-a",
    0,
    mig_capable=True,
    mig_enabled=True,
    memory_mib=40960,
    geometry=Geometry((SMALL, LARGE)),
)


def gpu(card: Card = CARD, conflict: Conflict | None = None) -> GpuUnit:
    """A GPU that does not offer the larger profile at present."""
    unit = GpuUnit(3, card, pcie_root="pci0000:00")
    unit.conflict = conflict
    unit.strike(LARGE.id, "the driver refused it")
    return unit


KNOWN = gpu()
PRESENT = GpuInstance(7, 19, Placement(4, 1))
ENTRY = Entry(
    claim=ClaimRef("default", "claim", "uid"),
    device="gpu-3-mig-1g5gb-19-4",
    state=State.PREPARED,
    gpu="GPU-a",
    boot_id="boot",
    profile_id=19,
    profile="1g.5gb",
    placement=Placement(4, 1),
    gi_id=7,
    ci_id=0,
    mig_uuid="MIG-u",
)
SHARE = Share(1000, 0, "default")
FAILURE = ("NVMLError", "it does not answer")
GONE = replace(CARD, reason="NVMLError", problem="it does not answer")

THERE = {
    State.INTENT: InstanceState.PREPARING,
    State.GI_CREATED: InstanceState.PREPARING,
    State.CI_CREATED: InstanceState.PREPARING,
    State.PREPARED: InstanceState.PREPARED,
    State.LOST: InstanceState.LOST,
    State.DESTROYING: InstanceState.RECLAIMING,
    State.CI_DESTROYED: InstanceState.RECLAIMING,
    State.LEFTOVER: InstanceState.RECLAIMING,
    State.ORPHAN: InstanceState.ORPHAN,
    State.TOMBSTONE: InstanceState.RECLAIMING,
}
AWAY = THERE | {State.PREPARED: InstanceState.LOST}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("known", "failure", "states"),
    [
        (KNOWN, ("", ""), AWAY),
        (KNOWN, FAILURE, THERE),
        (gpu(GONE), ("", ""), THERE),
        (gpu(replace(CARD, reason="MIGModePending")), ("", ""), AWAY),
    ],
    ids=["looked at", "it could not be looked at", "NVML failed before", "another trouble"],
)
def test_a_prepared_slice_counts_as_lost_only_where_somebody_has_looked(
    known: GpuUnit, failure: tuple[str, str], states: dict[State, InstanceState], state: State
) -> None:
    entry = replace(ENTRY, state=state)
    (shown,) = describe(known, [], [entry], owners={}, failure=failure).instances
    assert (shown.state, shown.claim) == (states[state], ENTRY.claim)


FOREIGN = {
    "of a profile that is known": (PRESENT, CARD.geometry, 19, "1g.5gb"),
    "of a profile that is not offered": (
        GpuInstance(8, 9, Placement(4, 4)),
        CARD.geometry,
        9,
        "3g.20gb",
    ),
    "of a profile that nobody knows": (GpuInstance(8, 77, Placement(4, 1)), CARD.geometry, 77, ""),
    "where no profiles are known": (PRESENT, None, 19, ""),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_an_instance_without_an_owner_is_foreign(case: str) -> None:
    found, geometry, profile_id, profile = FOREIGN[case]
    known = gpu(replace(CARD, geometry=geometry))
    (shown,) = describe(known, [found], [], owners={}).instances
    assert shown == Instance(
        found.placement,
        InstanceState.FOREIGN,
        profile_id=profile_id,
        profile=profile,
        gpu_instance_id=found.id,
    )


CONFLICT = Conflict(NodeReason.PAUSED, "a pause was asked for")
AVAILABILITY = {
    "usable": (KNOWN, ("", ""), ("", "")),
    "not to be looked at": (KNOWN, FAILURE, FAILURE),
    "not to be looked at, whatever else there is": (
        gpu(GONE, CONFLICT),
        ("NVMLHang", "it hangs"),
        ("NVMLHang", "it hangs"),
    ),
    "with a trouble of its own": (gpu(GONE, CONFLICT), ("", ""), FAILURE),
    "unavailable": (
        gpu(replace(CARD, mig_enabled=False), CONFLICT),
        ("", ""),
        (CONFLICT.reason, CONFLICT.problem),
    ),
    "without MIG": (
        gpu(replace(CARD, mig_capable=False, mig_enabled=False)),
        ("", ""),
        ("NoMIG", ""),
    ),
    "without MIG mode": (gpu(replace(CARD, mig_enabled=False)), ("", ""), ("MIGDisabled", "")),
}


@pytest.mark.parametrize("case", AVAILABILITY)
def test_why_a_gpu_cannot_be_used_is_said_in_a_word_and_in_words(case: str) -> None:
    known, failure, expected = AVAILABILITY[case]
    shown = describe(known, [], [], owners={}, failure=failure)
    assert (shown.reason, shown.unavailable) == expected


def test_instances_are_in_the_order_of_their_places_and_a_whole_gpu_is_none() -> None:
    absent = replace(ENTRY, device="low", placement=Placement(0, 1), gi_id=1, state=State.INTENT)
    whole = replace(ENTRY, device="gpu-3", placement=None, profile_id=None)
    shown = describe(KNOWN, [PRESENT], [whole, ENTRY, absent], owners={7: ENTRY}).instances
    assert [i.placement.start for i in shown] == [0, 4]


def test_a_slice_that_claims_share_is_shown_once_for_each_that_has_it() -> None:
    states = (State.PREPARED, State.PREPARED, State.LEFTOVER)
    shares = [
        replace(ENTRY, claim=ClaimRef("default", f"c{i}", f"uid-{i}"), state=s, share=SHARE)
        for i, s in enumerate(states)
    ]
    gone = replace(shares[0], claim=ClaimRef("default", "c3", "uid-3"), mig_uuid="MIG-before")
    entries = [gone, *shares]
    shown = describe(KNOWN, [PRESENT], entries, owners={7: shares[0]}).instances
    assert {i.claim.name: (i.state, i.uuid) for i in shown if i.claim} == {
        "c0": (InstanceState.PREPARED, "MIG-u"),
        "c1": (InstanceState.PREPARED, "MIG-u"),
        "c2": (InstanceState.RECLAIMING, "MIG-u"),
        "c3": (InstanceState.LOST, "MIG-before"),
    }
