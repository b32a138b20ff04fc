"""Slices made as soon as their claims are allocated here, before kubelet asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims import early
from kubeletplugin.journal.entries import State
from kubeletplugin.telemetry.telemetry import Telemetry
from kubeletplugin.times import LONGEST_OVERDUE_SECONDS, OVERDUE_SECONDS
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.dra.kube.clocks import FakeClock
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


def test_what_kubelet_asks_for_goes_first(rig: Rig) -> None:
    assert rig.daemon is not None
    unit = rig.daemon.hardware.named("gpu-0")
    with unit.lock:
        late = rig.claim(DEVICE, expected=True)
        on_other_gpu = ahead(rig, ELSEWHERE)
        asked = rig.claim(BESIDE)
        asking = threading.Thread(target=lambda: rig.prepared(asked))
        asking.start()
        wait_for("the call", lambda: unit.lock._waiting)
        assert [e.claim for e in rig.journal()] == [on_other_gpu]
    asking.join(PATIENCE)
    wait_for("the slice", lambda: made_ahead(rig, late))
    order = [e.claim for e in rig.journal()]
    assert order.index(asked) < order.index(late)


def test_a_slice_that_is_needed_no_more_leaves_its_place_to_a_prepare(rig: Rig) -> None:
    """Even where the watch has told nothing of its claim."""
    ref = ahead(rig, DEVICE)
    assert rig.daemon is not None
    assert rig.daemon.claim_watch is not None
    rig.daemon.claim_watch.stop()
    rig.set_status(ref, reservedFor=None)
    rig.set_status(ref, allocation=None)
    rig.prepared(rig.claim(OVERLAPPING))


# -- not asked for


def readiness(rig: Rig, ref: ClaimRef) -> list[tuple[str, str]]:
    """Status and reason of the condition Ready of each of the claim's devices."""
    shown = [c for device in rig.claim_status(ref) for c in device["conditions"]]
    return [(c["status"], c["reason"]) for c in shown if c["type"] == "Ready"]


def test_what_kubelet_does_not_ask_for_says_so_until_it_does(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "OVERDUE_SECONDS", 0.0)
    asked, other = ahead(rig, DEVICE), ahead(rig, BESIDE)
    unasked = [("False", "Unasked")]
    assert rig.daemon is not None
    rig.daemon.node.outcomes.registered()
    wait_for("the statuses", lambda: readiness(rig, asked) == readiness(rig, other) == unasked)
    rig.prepared(asked)
    wait_for("the status", lambda: readiness(rig, asked) == [("True", "Prepared")])
    rig.set_status(other, reservedFor=None)
    wait_for("the status", lambda: rig.claim_status(other) == [])


class Overdue:
    """Early slices on a turned clock; only the pods of claims "a" and "b" can be bound."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[tuple[float, str]] = []
        journal = SimpleNamespace(entries=list, of_claim=lambda _: (), rebuild=False)
        self._journal = journal
        self.outcomes = SimpleNamespace(
            statuses=SimpleNamespace(show=self._show),
            registered_at=0.0,
            answered_at=float("-inf"),
            is_awaited=lambda uid: uid == "c",
        )
        common: Any = SimpleNamespace(
            journal=journal,
            clock=self.clock,
            readiness=SimpleNamespace(is_ready=True),
            telemetry=Telemetry(),
            changed=lambda: None,
        )
        node: Any = SimpleNamespace(removal=SimpleNamespace(hardware=None), outcomes=self.outcomes)
        nobody: Any = None
        self._slices = early.EarlySlices(common, node, nobody, seconds=1e6)

    def shown(self, *records: tuple[str, bool, int | None]) -> float | None:
        """Look at entries of claims by UID: ``early``, and the compute instance."""
        self._journal.entries = lambda: [
            SimpleNamespace(claim=ClaimRef("default", uid, uid), early=is_early, ci_id=ci)
            for uid, is_early, ci in records
        ]
        pause = self._slices._turn()
        return None if pause is None or pause > LONGEST_OVERDUE_SECONDS else pause

    def _show(self, ref: ClaimRef, *, overdue: bool) -> None:
        assert overdue
        self.told.append((self.clock.at, ref.uid))


def test_a_slice_is_overdue_some_time_after_it_is_whole_and_told_once() -> None:
    overdue = Overdue()
    clock, told, shown = overdue.clock, overdue.told, overdue.shown
    assert shown(("a", True, 0), ("a", True, None)) is None  # half of it
    assert shown(("b", False, 0)) is None  # asked for
    assert shown(("c", True, 0)) is None  # its pod cannot be bound
    clock.at = 5
    assert shown(("a", True, 0), ("c", True, 0)) == OVERDUE_SECONDS
    clock.at += OVERDUE_SECONDS / 2
    assert shown(("a", True, 0), ("b", True, 0)) == OVERDUE_SECONDS / 2
    clock.at += OVERDUE_SECONDS / 2
    assert shown(("a", True, 0), ("b", True, 0)) == OVERDUE_SECONDS / 2
    assert told == [(5 + OVERDUE_SECONDS, "a")]
    clock.at = 20
    assert shown(("a", True, 0)) is None
    assert shown() is None
    assert shown(("a", True, 0)) == OVERDUE_SECONDS, "made once more"
    assert told == [(5 + OVERDUE_SECONDS, "a")]


def test_a_whole_gpu_for_which_kubelet_does_not_ask_is_listed_until_it_does(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec("A100-SXM4-40GB", mig=False))
    rig.start()
    assert rig.daemon is not None
    rig.daemon.node.outcomes.registered()
    ref = rig.claim("gpu-0")

    def listed() -> list[tuple[str, bool]]:
        return [(f["uid"], f["passing"]) for f in rig.mignode()["status"].get("failedClaims", [])]

    rig.daemon.early.expect(ref, ("gpu-0",))
    wait_for("the claim in the MigNode", lambda: listed() == [(ref.uid, True)])
    rig.prepared(ref)
    wait_for("its end", lambda: listed() == [])
    assert rig.unprepare(ref) == ""
    rig.daemon.early.thread.notify()
    assert listed() == [], "it is not asked for twice"


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


def test_while_kubelet_goes_on_asking_a_slice_is_overdue_later_but_not_for_ever() -> None:
    overdue = Overdue()
    clock, shown = overdue.clock, overdue.shown
    assert shown(("a", True, 0)) == OVERDUE_SECONDS
    while not overdue.told:
        clock.at += OVERDUE_SECONDS / 2
        overdue.outcomes.answered_at = clock.at
        assert shown(("a", True, 0)) in {OVERDUE_SECONDS, OVERDUE_SECONDS / 2, None}
    assert overdue.told == [(LONGEST_OVERDUE_SECONDS, "a")]
    assert shown(("b", True, 0)) == OVERDUE_SECONDS
    clock.at += OVERDUE_SECONDS
    assert shown(("b", True, 0)) is None, "it asks for nothing any more"
    assert overdue.told[1:] == [(clock.at, "b")]
