"""Slices made as soon as their claims are allocated here, before kubelet asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.aheadofkubelet import (
    BESIDE,
    CREATE_GI,
    DEVICE,
    ELSEWHERE,
    OVERLAPPING,
    acted,
    ahead,
    creations,
    given_back,
    made_ahead,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

# -- made, and met


def test_prepare_of_a_claim_whose_slice_was_made_ahead_makes_nothing(rig: Rig) -> None:
    ref = ahead(rig, DEVICE, ELSEWHERE)
    before = rig.mutations()
    assert len(rig.own(ref)) == 2
    assert rig.mutations() == before
    assert {e.state for e in rig.journal()} == {State.PREPARED}
    assert not any(e.early for e in rig.journal())
    assert (acted(rig, "ahead"), acted(rig, "met")) == (1, 1)
    assert not rig.unprepare(ref)
    assert rig.clean()


def test_a_claim_that_was_allocated_while_the_plugin_was_away_is_made_when_it_starts(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    ref = rig.claim(DEVICE, expected=True)
    rig.start()
    wait_for("the slice", lambda: made_ahead(rig, ref))


def test_nothing_is_made_by_a_label_alone(rig: Rig) -> None:
    """Any user may set it: without an allocation here that a pod has reserved it says nothing."""
    rig.claim(DEVICE, expected=True, allocated=False)
    unreserved = rig.claim(OVERLAPPING, expected=True)
    wait_for("the slice", lambda: made_ahead(rig, unreserved))
    rig.set_status(unreserved, reservedFor=None)
    wait_for("its end", lambda: given_back(rig, unreserved))
    foreign = [{"request": "r0", "driver": DRIVER, "pool": "elsewhere", "device": BESIDE}]
    other = rig.claim(expected=True, allocated=False)
    rig.allocate(other, foreign, reserved=True)
    ref = ahead(rig, ELSEWHERE)
    assert {e.claim for e in rig.journal()} == {ref}


def test_nothing_is_made_before_kubelet_asks_where_that_is_switched_off(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.eager_seconds = 0.0
    rig.start()
    ref = rig.claim(DEVICE, expected=True)
    assert rig.daemon is not None
    assert rig.daemon.claim_watch is None
    rig.prepared(ref)
    assert acted(rig, "ahead") == 0


# -- two that want the same


def test_a_prepare_during_the_creation_waits_for_it_and_makes_nothing_itself(rig: Rig) -> None:
    rig.machine.inject(Fault(function=CREATE_GI, action="hang"))
    ref = rig.claim(DEVICE, expected=True)
    wait_for("the call", lambda: creations_begun(rig))
    answers: list[list[str]] = []
    asking = threading.Thread(target=lambda: answers.append(rig.prepared(ref)))
    asking.start()
    rig.machine.clear_faults()
    asking.join(PATIENCE)
    assert len(answers) == 1
    assert creations(rig) == 1


@pytest.mark.parametrize("how", ["unprepare", "delete", "deallocate"])
def test_an_end_during_the_creation_undoes_it(rig: Rig, how: str) -> None:
    rig.machine.inject(Fault(function=CREATE_GI, action="hang"))
    ref = rig.claim(DEVICE, expected=True)
    wait_for("the call", lambda: creations_begun(rig))
    asking = threading.Thread(target=lambda: rig.unprepare(ref))
    if how == "unprepare":
        asking.start()
    else:
        rig.set_status(ref, reservedFor=None)
        rig.delete_claim(ref) if how == "delete" else rig.set_status(ref, allocation=None)
    rig.machine.clear_faults()
    if how == "unprepare":
        asking.join(PATIENCE)
    wait_for("its end", lambda: given_back(rig, ref))


def test_a_claim_that_gets_another_device_during_the_creation_gets_that_made(rig: Rig) -> None:
    rig.machine.inject(Fault(function=CREATE_GI, action="hang"))
    ref = rig.claim(DEVICE, expected=True)
    wait_for("the call", lambda: creations_begun(rig))
    rig.set_status(ref, reservedFor=None)
    rig.set_status(ref, allocation=None)
    given = [{"request": "r0", "driver": DRIVER, "pool": rig.node, "device": ELSEWHERE}]
    rig.allocate(ref, given, reserved=True)
    rig.machine.clear_faults()
    wait_for("the other", lambda: {e.device for e in rig.journal()} == {ELSEWHERE})


def creations_begun(rig: Rig) -> bool:
    """True if a GPU instance is recorded as to be made; the call hangs then."""
    return any(e.state is State.INTENT for e in rig.journal())


def test_a_slice_that_is_needed_no_more_leaves_its_place_to_a_prepare(rig: Rig) -> None:
    """Even where the watch has told nothing of its claim."""
    ref = ahead(rig, DEVICE)
    assert rig.daemon is not None
    assert rig.daemon.claim_watch is not None
    rig.daemon.claim_watch.stop()
    rig.set_status(ref, reservedFor=None)
    rig.set_status(ref, allocation=None)
    rig.prepared(rig.claim(OVERLAPPING))


def test_a_call_that_may_have_found_no_plugin_is_to_be_repeated_after_the_registration(
    rig: Rig,
) -> None:
    assert rig.daemon is not None
    outcomes, expect = rig.daemon.node.outcomes, rig.daemon.early.expect
    held, late = rig.claim(DEVICE), rig.claim(BESIDE)
    rig.prepared(held)
    expect(held, (DEVICE,))
    outcomes.registered()
    assert outcomes.resumed == "", "kubelet has missed nothing"
    expect(late, (BESIDE,))
    assert outcomes.resumed == "", "it can call"
    rig.restart()
    outcomes = rig.daemon.node.outcomes
    rig.daemon.early.expect(rig.claim("gpu-1-mig-1g5gb-19-0"), ("gpu-1-mig-1g5gb-19-0",))
    outcomes.registered()
    assert outcomes.resumed
