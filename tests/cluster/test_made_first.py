"""A pod with the scheduling gate is bound only where its slice was made."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from dra.gpu.names import finalizer
from hack.cluster.api import Api
from hack.cluster.node.kubelet import KubeletNode
from hack.cluster.nodes import pod
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from tests.cluster.conftest import FAKE_NODES
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.workload import SLEEPING, Workload

REFUSED = 2
"""NVML_ERROR_INVALID_ARGUMENT: it does not pass by itself."""


@pytest.fixture
def device_class(api: Api) -> Iterator[str]:
    """A class of 2g.10gb that is placed on the first node by name, and made before it is bound."""
    profile = f"device.attributes['{DRIVER}'].profile == '2g.10gb'"
    parameters: dict[str, Any] = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "first-fit"},
        "preparation": {"bindWhen": "made"},
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "made-first"},
        "spec": {
            "selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {profile}"}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
        },
    }
    api.create(body)
    yield "made-first"
    api.delete("DeviceClass", "made-first")


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


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("refusing")
def test_a_pod_is_bound_where_its_slice_was_made_after_others_refused(
    *,
    agreement: Agreement,
    api: Api,
    device_class: str,
    driver: Driver,
    kubelet: KubeletNode,
    workload: Workload,
) -> None:
    claims = {"gpu": workload.template("made", device_class=device_class)}
    gate = {"name": finalizer(DRIVER)}
    workload.create(pod("made", SLEEPING, claims=claims, schedulingGates=[gate]))
    seen = workload.wait_for_phase("made", "Running", timeout=120)
    assert seen["spec"]["nodeName"] == kubelet.name
    log = driver.controller.log.read_text().splitlines()
    made = [line for line in log if "allocated claim=" in line and "pod=default/made" in line]
    tried = [line.partition(" node=")[2].partition(" ")[0] for line in made]
    times = [datetime.fromisoformat(line.partition(" ")[0]) for line in made]
    gaps = [f"{(b - a).total_seconds():.2f} s" for a, b in pairwise(times)]
    print(f"next node after {', '.join(gaps)}, creation and refusal included")  # noqa: T201
    assert tried == [*FAKE_NODES, kubelet.name]
    uid = seen["metadata"]["uid"]
    told = {e["reason"] for e in api.list("Event") if e["involvedObject"].get("uid") == uid}
    assert "Started" in told
    assert not {reason for reason in told if reason.startswith("FailedPrepare")}
    assert len(agreement.settle(context=workload.describe)) == 1
