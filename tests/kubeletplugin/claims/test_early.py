"""Slices made as soon as their claims are allocated here, before kubelet asks for them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dra.claims.allocation import node_label
from dra.common.resources import NAMESPACES, RESOURCE_CLAIMS
from kubeletplugin.claims import early
from kubeletplugin.claims.early import MOST_OF_GPU, Allowance
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
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


# -- slices made before kubelet asks that are given back, and creations that fail


@pytest.mark.parametrize("how", ["delete", "deallocate", "unreserve", "elsewhere", "unlabel"])
def test_a_slice_whose_pod_does_not_come_is_given_back(rig: Rig, how: str) -> None:
    ref = ahead(rig, DEVICE)
    if how == "unlabel":  # which is no end while the claim is as it was
        labels = {node_label(DRIVER): None}
        rig.api.patch(
            RESOURCE_CLAIMS, ref.name, {"metadata": {"labels": labels}}, namespace="default"
        )
        ahead(rig, ELSEWHERE)
        assert made_ahead(rig, ref)
        return
    rig.set_status(ref, reservedFor=None)
    if how == "delete":
        rig.delete_claim(ref)
    elif how != "unreserve":
        rig.set_status(ref, allocation=None)
    if how == "elsewhere":
        given = [{"request": "r0", "driver": DRIVER, "pool": "elsewhere", "device": DEVICE}]
        rig.allocate(ref, given, reserved=True)
    wait_for("its end", lambda: given_back(rig, ref))
    wait_for("the count", lambda: acted(rig, "returned") == 1)


def test_a_slice_waits_for_its_pod_for_a_time_and_is_not_made_once_more(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.eager_seconds = 0.5
    rig.start()
    ref = rig.claim(DEVICE, expected=True)
    wait_for("its end", lambda: acted(rig, "returned") == 1)
    rig.set_status(ref, reservedFor=[{"resource": "pods", "name": "p", "uid": "u"}])
    wait_for("another", lambda: acted(rig, "returned") == 1 and rig.clean())
    assert creations(rig) == 1
    rig.prepared(ref)


def test_whoever_makes_claims_and_deletes_them_has_few_slices_made(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "FORGIVEN_SECONDS", 3600.0)
    rig.api.create(NAMESPACES, {"metadata": {"name": "hostile"}})
    for ended in range(1, early.MOST_OF_NAMESPACE + 1):
        ref = ahead(rig, DEVICE, namespace="hostile")
        rig.set_status(ref, reservedFor=None)
        rig.delete_claim(ref)
        wait_for("its end", lambda n=ended: acted(rig, "returned") == n)  # type: ignore[misc]
    made = creations(rig)
    refused = rig.claim(DEVICE, namespace="hostile", expected=True)
    ahead(rig, BESIDE)
    assert creations(rig) == made + 1
    rig.prepared(refused)


def waste(allowance: Allowance, namespace: str, gpu: str, times: int) -> None:
    for _ in range(times):
        allowance.waste(namespace, [gpu])


def test_many_namespaces_together_have_no_more_than_a_gpu_has() -> None:
    allowance = Allowance(FakeClock())
    for number in range(MOST_OF_GPU):
        waste(allowance, f"namespace-{number}", "gpu-0", 1)
    assert not allowance.is_left("another", ["gpu-1", "gpu-0"])
    assert allowance.is_left("another", ["gpu-1"])
