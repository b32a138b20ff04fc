"""One GPU of several that refuses: the slice is made on another of the same node, then bound."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from hack.cluster.api import Api
from hack.cluster.binaries import NODE, Binaries
from hack.cluster.node.kubelet import KubeletNode
from hack.cluster.nodes import pod
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.waiting import wait_for
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import make_namespace, serve_mignodes
from tests.cluster.harness.workload import SLEEPING, Workload
from tests.cluster.test_cut_first import REFUSED, made_first, reservations

NAME = "gpus"
GPUS = 4
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@dataclass
class Ground:
    """A control plane with one node that runs pods, and has several GPUs."""

    api: Api
    driver: Driver
    machine: Machine
    workload: Workload

    def instances(self) -> list[int]:
        """The number of GPU instances on each GPU."""
        return [len(gpu.gpu_instances) for gpu in self.machine.state().gpus]

    def reserved(self, name: str) -> dict[str, datetime]:
        """The GPUs on which a slice was reserved for a pod, with the time of each."""
        log = self.driver.controller.log.read_text().splitlines()
        made = [line for line in log if " reserved " in line and f"pod=default/{name} " in line]
        return {
            line.partition(" device=")[2].partition("-mig-")[0]: datetime.fromisoformat(
                line.partition(" ")[0]
            )
            for line in made
        }

    def told(self, name: str) -> set[str]:
        """Reasons of the events of a pod."""
        events = self.api.list("Event")
        return {e["reason"] for e in events if e["involvedObject"]["name"] == name}


@pytest.fixture(scope="module")
def ground(binaries: Binaries, root: Path) -> Iterator[Ground]:
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    home = root / "cg"
    folders = {name: home / name for name in ("cp", "d", "n", "shown")}
    for folder in (home, *folders.values()):
        folder.mkdir()
    users = (credentials.MIG_CONTROLLER, credentials.MIG_PLUGIN, credentials.node_user(NAME))
    with (
        ControlPlane(binaries, folders["cp"], users=users) as plane,
        KubeletNode(
            binaries, plane, name=NAME, root=folders["n"], shown=folders["shown"]
        ) as kubelet,
    ):
        make_namespace(plane.api)
        serve_mignodes(plane.api)
        driver = Driver(plane, folders["d"])
        driver.add_node(
            NAME,
            gpus=("A100-SXM4-40GB",) * GPUS,
            kubelet_root=kubelet.kubelet_root,
            cdi_root=kubelet.cdi_root,
        )
        with driver:
            workload = Workload(plane.api, tails=lambda: f"{driver.tails()}\n{kubelet.tails()}")
            machine = Machine(driver.hardware[NAME].state)
            wait_for("MigNode", lambda: plane.api.find("MigNode", NAME), context=driver.tails)
            plane.api.create(made_first("cut-first"))
            yield Ground(plane.api, driver, machine, workload)
            workload.clear()


@pytest.mark.timeout(240)
def test_a_gpu_that_refuses_costs_a_pod_no_more_than_another_of_its_node(ground: Ground) -> None:
    no = Fault(id="no", function=CREATE, gpu=0, action="return", code=REFUSED, times=0)
    ground.machine.inject(no)
    for name in ("first", "second"):
        claims = {"gpu": ground.workload.template(name, device_class="cut-first")}
        ground.workload.create(pod(name, SLEEPING, claims=claims))
        ground.workload.wait_for_phase(name, "Running", timeout=120)
        claim = ground.workload.claim_of(name) or {}
        [given] = claim["status"]["allocation"]["devices"]["results"]
        assert given["device"].startswith("gpu-1-mig-2g10gb-")
        assert "Started" in ground.told(name)
        assert not [each for each in ground.told(name) if each.startswith("FailedPrepare")]
        times = ground.reserved(name)
        gaps = [(after - before).total_seconds() for before, after in pairwise(times.values())]
        print(f"{name}: {[*times]}, one after the other within {gaps} s")  # noqa: T201
        # One that refused is left out for a while: whoever comes next does not ask it.
        assert [*times] == (["gpu-0", "gpu-1"] if name == "first" else ["gpu-1"])
    wait_for("slices of both", lambda: ground.instances() == [0, 2, 0, 0])
    wait_for("end of reservations", lambda: not reservations(ground.api))
