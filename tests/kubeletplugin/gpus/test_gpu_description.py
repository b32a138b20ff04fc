"""Descriptions of a GPU as they are published, case by case: instances, and reasons against it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, InstanceState
from kubeletplugin.gpus.gpu import Conflict, GpuUnit
from kubeletplugin.gpus.reader import describe
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.gpus import Card

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
