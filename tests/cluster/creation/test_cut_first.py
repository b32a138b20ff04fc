"""Claims that are allocated only once their node has made their slices, so that pods are bound."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from dra.common.resources import Obj
from dra.gpu.names import finalizer
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from sim.processes import wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.ground import FAKE_NODES
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload

SLOW = Fault(function="nvmlDeviceCreateGpuInstanceWithPlacement", action="delay", seconds=2.0)
"""A creation that lasts, so that something can happen in between."""
REFUSED = 2
"""NVML_ERROR_INVALID_ARGUMENT: it does not pass by itself."""


def made_first(name: str) -> Obj:
    """A class of 2g.10gb placed on the first node and GPU by name, made before it is allocated."""
    profile = f"device.attributes['{DRIVER}'].profile == '2g.10gb'"
    parameters: dict[str, Any] = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "best-fit"},
        "preparation": {"bindWhen": "made"},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {profile}"}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
        },
    }


@pytest.fixture
def device_class(api: Api) -> Iterator[str]:
    api.create(made_first("cut-first"))
    yield "cut-first"
    api.delete("DeviceClass", "cut-first")


@pytest.fixture
def refusing(driver: Driver) -> Iterator[None]:
    """The nodes without kubelet, which come first by name, can make no slice."""
    machines = [Machine(driver.hardware[name].state) for name in FAKE_NODES]
    for machine in machines:
        machine.inject(
            Fault(
                id="no",
                function="nvmlDeviceCreateGpuInstanceWithPlacement",
                action="return",
                code=REFUSED,
                times=0,
            )
        )
    yield
    for machine in machines:
        machine.clear_faults()


def reservations(api: Api) -> list[Obj]:
    return [r for node in api.list("MigNode") for r in node["spec"].get("reservations", ())]


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("refusing")
@pytest.mark.parametrize("gated", [False, True])
def test_a_pod_is_bound_where_its_slice_was_made_after_others_refused(
    *,
    agreement: Agreement,
    api: Api,
    device_class: str,
    driver: Driver,
    gated: bool,
    kubelet: KubeletNode,
    workload: Workload,
) -> None:
    name = "gated" if gated else "plain"
    claims = {"gpu": workload.template(name, device_class=device_class)}
    gates = [{"name": finalizer(DRIVER)}] if gated else []
    workload.create(pod(name, SLEEPING, claims=claims, schedulingGates=gates))
    seen = workload.wait_for_phase(name, "Running", timeout=120)
    assert seen["spec"]["nodeName"] == kubelet.name
    log = driver.controller.log.read_text().splitlines()
    made = [line for line in log if " reserved " in line and f"pod=default/{name} " in line]
    tried = [line.partition(" node=")[2].partition(" ")[0] for line in made]
    times = [datetime.fromisoformat(line.partition(" ")[0]) for line in made]
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    print(f"{name}: next node after {gaps} s, creation and refusal included")  # noqa: T201
    # Where a slice could not be made lately, nothing is placed for a while.
    assert tried[-1] == kubelet.name
    assert set(tried) <= {*FAKE_NODES, kubelet.name}
    uid = seen["metadata"]["uid"]
    told = {e["reason"] for e in api.list("Event") if e["involvedObject"].get("uid") == uid}
    assert "Started" in told
    assert not {reason for reason in told if reason.startswith("FailedPrepare")}
    assert len(agreement.settle(context=workload.describe)) == 1
    wait_for("end of reservations", lambda: not reservations(api), context=workload.describe)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", ["controller", "plugin", "both"])
def test_whoever_is_killed_in_between_the_pod_runs_and_nothing_is_left(
    *,
    agreement: Agreement,
    api: Api,
    device_class: str,
    driver: Driver,
    killed: str,
    kubelet: KubeletNode,
    where: dict[str, Any],
    workload: Workload,
) -> None:
    agreement.machine.inject(SLOW)
    claims = {"gpu": workload.template("killed", device_class=device_class)}
    workload.create(pod("killed", SLEEPING, claims=claims, **where))
    wait_for("reservation", lambda: reservations(api), context=workload.describe)
    plugin = driver.plugins[kubelet.name]
    for process in [driver.controller] * (killed != "plugin") + [plugin] * (killed != "controller"):
        process.kill()
        process.start()
    workload.wait_for_phase("killed", "Running", timeout=120)
    assert len(agreement.settle(context=workload.describe)) == 1
    wait_for("end of reservations", lambda: not reservations(api), context=workload.describe)


@pytest.mark.timeout(240)
def test_what_a_deleted_pod_had_reserved_is_given_back(
    *,
    agreement: Agreement,
    api: Api,
    device_class: str,
    driver: Driver,
    where: dict[str, Any],
    workload: Workload,
) -> None:
    agreement.machine.inject(SLOW)
    claims = {"gpu": workload.template("gone", device_class=device_class)}
    workload.create(pod("gone", SLEEPING, claims=claims, **where))
    wait_for("reservation", lambda: reservations(api), context=workload.describe)
    api.delete("Pod", "gone")
    wait_for("end of reservations", lambda: not reservations(api), context=workload.describe)
    assert not agreement.settle(context=workload.describe)
