"""Pods that a real kube-scheduler binds only once the slices are made that we allocated to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from dra.claims.conditions import SLICE_MADE
from dra.common.resources import Obj, at
from hack.cluster.api import Api
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.ground import FAKE_NODES
from tests.cluster.harness.pods import pod
from tests.cluster.harness.stage import Stage
from tests.cluster.harness.workload import SLEEPING

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
SLOW = Fault(function=CREATE, action="delay", seconds=2.0)
"""A creation that lasts, so that something can happen in between."""
REFUSED = 2
"""NVML_ERROR_INVALID_ARGUMENT: it does not pass by itself."""
CLASS = "made-first"


@pytest.fixture(autouse=True)
def device_class(api: Api) -> Iterator[None]:
    """A class of 2g.10gb placed on the emptiest node, made before a pod is bound."""
    profile = f"device.attributes['{DRIVER}'].profile == '2g.10gb'"
    parameters: dict[str, Any] = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "spread"},
        "preparation": {"bindWhen": "made"},
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {
            "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {profile}"}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
        },
    }
    api.create(body)
    yield
    api.delete("DeviceClass", CLASS)


@pytest.fixture
def refusing(driver: Driver) -> Iterator[None]:
    """The nodes without kubelet, whose GPUs are empty, can make no slice."""
    machines = [Machine(driver.hardware[name].state) for name in FAKE_NODES]
    for machine in machines:
        machine.inject(Fault(id="no", function=CREATE, action="return", code=REFUSED, times=0))
    yield
    for machine in machines:
        machine.clear_faults()


class Claims:
    """Nodes of all claims in order, and pods that were bound without a slice."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.nodes: dict[str, list[str]] = {}
        self.bound_early: list[str] = []

    def look(self) -> None:
        for each in self._stage.api.list("Pod"):
            made = [claim for claim in self._of(each) if self._is_made(claim)]
            if each["spec"].get("nodeName") and not made:
                self.bound_early.append(each["metadata"]["name"])
        for claim in self._stage.api.list("ResourceClaim"):
            results = at(claim, "status", "allocation", "devices", "results")
            seen = self.nodes.setdefault(claim["metadata"]["name"], [])
            if results and results[0]["pool"] not in seen[-1:]:
                seen.append(results[0]["pool"])

    def _of(self, body: Obj) -> list[Obj]:
        uid = body["metadata"]["uid"]
        claims = self._stage.api.list("ResourceClaim")
        return [c for c in claims if uid in {r["uid"] for r in at(c, "status", "reservedFor")}]

    def _is_made(self, claim: Obj) -> bool:
        conditions = [c for d in at(claim, "status", "devices") for c in d["conditions"]]
        return any((c["type"], c["status"]) == (SLICE_MADE, "True") for c in conditions)


@contextmanager
def watched(stage: Stage) -> Iterator[Claims]:
    """Fate of claims meanwhile; no pod is bound before its slice is made."""
    claims, over = Claims(stage), Event()

    def look() -> None:
        while not over.wait(0.1):
            claims.look()

    thread = Thread(target=look)
    thread.start()
    try:
        yield claims
    finally:
        over.set()
        thread.join()
    assert claims.bound_early == []


def told(stage: Stage, name: str) -> set[str]:
    uid = stage.api.get("Pod", name)["metadata"]["uid"]
    return {e["reason"] for e in stage.api.list("Event") if e["involvedObject"].get("uid") == uid}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("refusing")
def test_pods_are_bound_where_their_slices_are_made_after_others_refused(stage: Stage) -> None:
    """A pod with a claim of its own, and two that share one."""
    workload = stage.workload
    own = {"gpu": workload.template("own", device_class=CLASS)}
    shared = {"gpu": workload.claim("shared", device_class=CLASS)}
    pods = {"first": own, "second": shared, "third": shared}
    with watched(stage) as seen:
        for name, claims in pods.items():
            workload.create(pod(name, SLEEPING, claims=claims))
        for name in pods:
            found = workload.wait_for_phase(name, "Running", timeout=200)
            assert found["spec"]["nodeName"] == stage.kubelet.name
    print(f"nodes tried: {seen.nodes}")  # noqa: T201
    assert len(seen.nodes) == 2
    for nodes in seen.nodes.values():
        assert nodes[0] in FAKE_NODES
        assert nodes[-1] == stage.kubelet.name
    for name in pods:
        reasons = told(stage, name)
        assert "BindingConditionsPending" in reasons
        assert not {reason for reason in reasons if reason.startswith("FailedPrepare")}
    assert len(stage.agreement.settle(context=workload.describe)) == 2


def begun(stage: Stage, name: str) -> None:
    """A pod on the real node, for whose slice kube-scheduler waits while it is being made."""
    stage.agreement.machine.inject(SLOW)
    claims = {"gpu": stage.workload.template(name, device_class=CLASS)}
    stage.workload.create(pod(name, SLEEPING, claims=claims, **stage.where))

    def is_reserved() -> bool:
        claim = stage.workload.claim_of(name)
        return claim is not None and bool(at(claim, "status", "reservedFor"))

    wait_for("reservation by kube-scheduler", is_reserved, context=stage.workload.describe)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", ["controller", "plugin", "both"])
def test_whoever_is_killed_in_between_the_pod_runs_and_nothing_is_left(
    *, killed: str, stage: Stage
) -> None:
    with watched(stage):
        begun(stage, "killed")
        plugin, controller = stage.driver.plugins[stage.kubelet.name], stage.driver.controller
        chosen = {"controller": [controller], "plugin": [plugin], "both": [controller, plugin]}
        for process in chosen[killed]:
            process.kill()
            process.start()
        stage.workload.wait_for_phase("killed", "Running", timeout=120)
    assert len(stage.agreement.settle(context=stage.workload.describe)) == 1


def failed(stage: Stage, name: str) -> bool:
    claim = stage.workload.claim_of(name) or {}
    conditions = [c for d in at(claim, "status", "devices") for c in d["conditions"]]
    return any((c["type"], c["status"]) == ("CreationFailed", "True") for c in conditions)
