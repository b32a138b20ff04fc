"""One GPU of several that refuses: the slice is made on another of the same node, then bound."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from hack.cluster.nodes import pod
from hack.cluster.waiting import wait_for
from sim.nvml.faults import Fault
from tests.cluster.creation.test_cut_first import REFUSED, made_first, reservations
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.workload import SLEEPING

NAME = "gpus"
GPUS = 4
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


class Ground(NodeSite):
    """A node that runs pods, and has several GPUs."""

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


@pytest.fixture(scope="module")
def ground(binaries: Binaries, root: Path) -> Iterator[Ground]:
    gpus = ("A100-SXM4-40GB",) * GPUS
    with running_node(binaries, root / "cg", name=NAME, gpus=gpus) as site:
        wait_for("MigNode", lambda: site.api.find("MigNode", NAME), context=site.driver.tails)
        site.api.create(made_first("cut-first"))
        yield Ground(site.api, site.driver, site.machine, site.workload)
        site.workload.clear()


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
