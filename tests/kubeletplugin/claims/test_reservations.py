"""Slices that the controller reserves in the MigNode: made, answered, kept or given back."""

from __future__ import annotations

import pytest

from dra.common.resources import MIG_NODES, Obj
from dra.gpu.inventory import MAKES_RESERVATIONS, ClaimRef, Reservation, ReservedDevice
from dra.gpu.mignode import from_mignode, reservation_fields
from kubeletplugin.claims import early
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

DEVICE, ELSEWHERE, OVERLAPPING = (
    "gpu-0-mig-1g5gb-19-4",
    "gpu-1-mig-1g5gb-19-0",
    "gpu-0-mig-2g10gb-14-4",
)
CREATE_GI = "nvmlDeviceCreateGpuInstance*"


def reservation(rig: Rig, ref: ClaimRef, *devices: str, name: str = "r", gpu: str = "") -> Obj:
    uuids = [g.uuid for g in rig.machine.state().gpus]
    reserved = tuple(
        ReservedDevice(d, gpu or uuids[int(d.split("-")[1])], f"r{i}")
        for i, d in enumerate(devices)
    )
    [field] = reservation_fields([Reservation(f"{name}-{ref.uid}", ref, reserved, 600)])
    return field


def reserve(rig: Rig, *fields: Obj) -> None:
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"reservations": [*fields] or None}})


def answers(rig: Rig) -> dict[str, str]:
    """The states by the first part of the reservation's id."""
    found = from_mignode(rig.mignode()).answers
    return {a.id.partition("-")[0]: str(a.state) for a in found}


def answered(rig: Rig, **states: str) -> None:
    wait_for("the answers", lambda: answers(rig) == states)


def unallocated(rig: Rig, *devices: str) -> ClaimRef:
    return rig.claim(*devices, expected=True, allocated=False)


def give(rig: Rig, ref: ClaimRef, *devices: str) -> None:
    results = [
        {"request": f"r{i}", "driver": DRIVER, "pool": rig.node, "device": d}
        for i, d in enumerate(devices)
    ]
    rig.allocate(ref, results, reserved=True)


def test_what_is_reserved_is_made_and_kept_for_the_claim_once_it_is_allocated(rig: Rig) -> None:
    assert MAKES_RESERVATIONS in from_mignode(rig.mignode()).capabilities
    ref = unallocated(rig, DEVICE, ELSEWHERE)
    reserve(rig, reservation(rig, ref, DEVICE, ELSEWHERE))
    answered(rig, r="made")
    made = rig.mutations()
    give(rig, ref, DEVICE, ELSEWHERE)
    reserve(rig)
    answered(rig)
    assert len(rig.own(ref)) == 2
    assert rig.mutations() == made
    assert {e.requests for e in rig.journal()} == {("r0",), ("r1",)}
    assert {e.state for e in rig.journal()} == {State.PREPARED}
    assert not rig.unprepare(ref)
    assert rig.clean()


def test_what_is_reserved_no_more_is_given_back(rig: Rig) -> None:
    ref, other = unallocated(rig), unallocated(rig)
    kept = reservation(rig, other, ELSEWHERE, name="kept")
    reserve(rig, reservation(rig, ref, DEVICE), kept)
    answered(rig, r="made", kept="made")
    reserve(rig, kept)
    wait_for("its end", lambda: [e.claim for e in rig.journal()] == [other])
    answered(rig, kept="made")
    reserve(rig, kept, reservation(rig, ref, DEVICE, name="again"))
    answered(rig, kept="made", again="made")


def test_a_failure_is_answered_and_leaves_nothing_of_any_of_its_slices(rig: Rig) -> None:
    # The second creation fails, on whichever of the two GPUs it is.
    rig.machine.inject(Fault(function=CREATE_GI, action="return", code=2, after=1))
    ref = unallocated(rig)
    reserve(rig, reservation(rig, ref, DEVICE, ELSEWHERE))
    answered(rig, r="failed")
    [answer] = from_mignode(rig.mignode()).answers
    assert "CreateGpuInstance" in answer.message
    assert rig.clean()
    assert from_mignode(rig.mignode()).failed_claims == ()


@pytest.mark.parametrize("by_whom", ["prepared", "reserved"])
def test_a_place_is_not_given_twice(rig: Rig, by_whom: str) -> None:
    first, second = rig.claim(DEVICE), unallocated(rig)
    kept = [] if by_whom == "prepared" else [reservation(rig, first, DEVICE, name="first")]
    if kept:
        reserve(rig, *kept)
        answered(rig, first="made")
    else:
        rig.prepared(first)
    reserve(rig, *kept, reservation(rig, second, OVERLAPPING))
    wait_for("the answer", lambda: answers(rig).get("r") == "failed")
    assert [e.claim for e in rig.journal()] == [first]


def test_a_gpu_that_is_another_by_now_is_left_alone(rig: Rig) -> None:
    ref = unallocated(rig)
    reserve(rig, reservation(rig, ref, DEVICE, gpu="GPU-another"))
    answered(rig, r="failed")
    assert rig.clean()


def test_whoever_had_too_much_made_for_nothing_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "MOST_OF_NAMESPACE", 0)
    reserve(rig, reservation(rig, unallocated(rig), DEVICE))
    answered(rig, r="refused")


def test_what_nobody_allocates_in_time_is_given_back(rig: Rig) -> None:
    ref = unallocated(rig)
    reserve(rig, {**reservation(rig, ref, DEVICE), "seconds": 1})
    answered(rig, r="expired")
    assert rig.clean()


def test_what_is_reserved_outlives_a_restart_with_its_answer(rig: Rig) -> None:
    ref = unallocated(rig)
    reserve(rig, reservation(rig, ref, DEVICE))
    answered(rig, r="made")
    rig.restart()
    answered(rig, r="made")
    rig.stop()
    reserve(rig)
    rig.start()
    wait_for("its end", rig.clean)


def test_a_node_that_makes_nothing_ahead_says_so_and_leaves_reservations_alone(rig: Rig) -> None:
    rig.stop()
    rig.eager_seconds = 0.0
    rig.start()
    assert MAKES_RESERVATIONS not in from_mignode(rig.mignode()).capabilities
    reserve(rig, reservation(rig, unallocated(rig), DEVICE))
    rig.prepared(rig.claim(ELSEWHERE))
    assert answers(rig) == {}
    assert rig.mignode()["spec"]["reservations"]
