"""Two node programs on one node: those of a rolling update, and those of two installations."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import grpc
import pytest

from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from dra.common.resources import Obj, at
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from sim.processes import Process, wait_for
from tests.cluster.harness.daemons import DRIVER, Driver, registrations, start_registered
from tests.cluster.harness.workload import Workload

OTHER = "gpu.other.example.com"
SOON = 0.5
"""A plugin that sends what it does not know yet has sent it by then; seconds."""


def waits(plugin: Process) -> int:
    """Number of times that a plugin has told that it waits for another to end."""
    told = plugin.log.read_text() if plugin.log.exists() else ""
    return told.count("has the GPUs of this node; waiting until it ends")


def take_over(begins: Process, ends: Process) -> None:
    """As in a rolling update: the one runs and waits before the other ends."""
    seen, waited = registrations(begins), waits(begins)
    begins.start()
    wait_for("both run", lambda: waits(begins) > waited, context=begins.tail)
    ends.stop(grace=30)
    wait_for("registration", lambda: registrations(begins) > seen, context=begins.tail)


def health(running: Obj) -> set[str]:
    """Health of the devices of a pod's containers, as kubelet tells it."""
    return {
        each["health"]
        for container in at(running, "status", "containerStatuses")
        for claim in container.get("allocatedResourcesStatus", [])
        for each in claim["resources"]
    }


def first_list(kubelet: KubeletNode, machine: Machine) -> list[str]:
    """Devices on the first list of health that a plugin sends, whose driver comes up only now."""
    folder = kubelet.kubelet_root / "plugins" / DRIVER
    newest = max(folder.glob("*.sock"), key=lambda path: path.stat().st_ctime_ns)
    with grpc.insecure_channel(f"unix:{newest}") as channel:
        stub = health_v1_grpc.DRAResourceHealthStub(channel)
        lists = stub.NodeWatchResources(health_v1.NodeWatchResourcesRequest(), timeout=60)
        time.sleep(SOON)
        machine.clear_faults()
        return [each.device.device_name for each in next(lists).devices]


@pytest.mark.timeout(300)
def test_the_first_list_of_health_after_a_rolling_update_is_whole(
    api: Api, driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    """kubelet forgets the health of a driver's devices when a stream ends (dra/manager.go)."""
    usual = driver.plugins[kubelet.name]
    second = driver.successor(kubelet.name, "--instance", "second")
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    claims = {"gpu": workload.template("held", device_class="mig-1g.5gb")}
    workload.run("held", claims=claims, **where)
    healthy = partial(wait_for, "health", lambda: health(api.get("Pod", "held")) == {"Healthy"})
    healthy()
    machine = Machine(driver.hardware[kubelet.name].state)
    before = first_list(kubelet, machine)
    assert len(before) == 1
    for begins, ends in ((second, usual), (usual, second)):
        machine.inject(Fault(function="nvmlInit*", action="hang", times=0))
        take_over(begins, ends)
        assert first_list(kubelet, machine) == before
        healthy(context=begins.tail)


@pytest.mark.timeout(300)
def test_the_second_installation_on_a_node_waits_until_the_first_has_ended(
    driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    usual = driver.plugins[kubelet.name]
    other = driver.successor(
        kubelet.name, "--driver-name", OTHER, "--state-dir", f"{driver.state(kubelet.name)}-other"
    )
    where: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}
    claims = {"gpu": workload.template("two", device_class="mig-1g.5gb")}
    other.start()
    try:
        wait_for("who waits", lambda: waits(other), context=other.tail)
        assert "driver mig.dra.dev has the GPUs of this node" in other.log.read_text()
        workload.run("served", claims=claims, **where)
        assert registrations(other) == 0
        usual.stop(grace=30)
        wait_for("registration", lambda: registrations(other) == 1, context=other.tail)
    finally:
        other.stop(grace=30)
        start_registered(usual)
    workload.run("after", claims=claims, **where)
