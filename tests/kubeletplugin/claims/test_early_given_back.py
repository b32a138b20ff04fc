"""Slices made before kubelet asks that are given back, and creations that fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.claims.allocation import node_label
from dra.common.resources import NAMESPACES, RESOURCE_CLAIMS
from kubeletplugin.claims import early
from kubeletplugin.claims.early import MOST_OF_GPU, MOST_OF_NAMESPACE, Allowance
from kubeletplugin.times import FORGIVEN_SECONDS
from sim.nvml.faults import Fault
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.aheadofkubelet import (
    BESIDE,
    CREATE_CI,
    CREATE_GI,
    DEVICE,
    ELSEWHERE,
    acted,
    ahead,
    creations,
    given_back,
    made_ahead,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig

# -- given back


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


def test_a_slice_that_was_made_ahead_outlives_a_restart_and_is_given_back_after_it(
    rig: Rig,
) -> None:
    ref = ahead(rig, DEVICE)
    rig.restart()
    assert made_ahead(rig, ref)
    assert creations(rig) == 1
    rig.stop()
    rig.set_status(ref, reservedFor=None)
    rig.set_status(ref, allocation=None)
    rig.start()
    assert rig.clean()


# -- what fails


@pytest.mark.parametrize("function", [CREATE_GI, CREATE_CI])
def test_a_failure_is_counted_and_prepare_tries_again(rig: Rig, function: str) -> None:
    rig.machine.inject(Fault(function=function, action="return", code=999))
    ref = rig.claim(DEVICE, expected=True)
    wait_for("the failure", lambda: acted(rig, "refused") == 1)
    assert rig.clean()
    rig.prepared(ref)
    assert acted(rig, "met") == 0


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


def test_creations_that_fail_are_few_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "FORGIVEN_SECONDS", 3600.0)
    rig.api.create(NAMESPACES, {"metadata": {"name": "calm"}})
    rig.machine.inject(Fault(function=CREATE_GI, action="return", code=999, times=0))
    most = early.MOST_OF_NAMESPACE
    for number in range(most + 2):
        rig.claim(f"gpu-{number % 2}-mig-1g5gb-19-{number // 2}", expected=True)
        wait_for("the attempt", lambda n=number: acted(rig, "refused") == min(n + 1, most))  # type: ignore[misc]
    rig.machine.clear_faults()
    ahead(rig, "gpu-1-mig-1g5gb-19-6", namespace="calm")
    assert acted(rig, "refused") == most


def waste(allowance: Allowance, namespace: str, gpu: str, times: int) -> None:
    for _ in range(times):
        allowance.waste(namespace, [gpu])


def test_many_namespaces_together_have_no_more_than_a_gpu_has() -> None:
    allowance = Allowance(FakeClock())
    for number in range(MOST_OF_GPU):
        waste(allowance, f"namespace-{number}", "gpu-0", 1)
    assert not allowance.is_left("another", ["gpu-1", "gpu-0"])
    assert allowance.is_left("another", ["gpu-1"])


def test_one_after_another_is_forgiven() -> None:
    clock = FakeClock()
    allowance = Allowance(clock)
    waste(allowance, "a", "gpu-0", MOST_OF_NAMESPACE)
    clock.sleep(FORGIVEN_SECONDS - 1)
    assert not allowance.is_left("a", ["gpu-0"])
    clock.sleep(1)
    assert allowance.is_left("a", ["gpu-0"])
    waste(allowance, "a", "gpu-0", 1)
    assert not allowance.is_left("a", ["gpu-0"])
