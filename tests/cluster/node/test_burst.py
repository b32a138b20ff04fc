"""As many pods as the GPUs of a node have slices, made at once and deleted at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from hack.cluster.chart import kubelet_rights
from hack.cluster.installation import apply
from sim.processes import wait_for
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING

NAME, GPUS, SLICES = "burst", 2, 14


def held(site: NodeSite) -> int:
    """Slices on the node's GPUs."""
    return sum(len(site.machine.gpu(n).gpu_instances) for n in range(GPUS))


@pytest.mark.timeout(300)
def test_each_pod_of_a_burst_gets_its_slice_at_the_first_call(
    binaries: Binaries, root: Path
) -> None:
    with running_node(binaries, root / NAME, name=NAME, gpus=("A100-SXM4-40GB",) * GPUS) as site:
        api, work = site.api, site.workload
        for each in kubelet_rights():
            apply(api, each)
        wait_for("class", lambda: api.find("DeviceClass", "mig-1g.5gb"))
        one = work.template("one", device_class="mig-1g.5gb")
        names = [f"pod-{n}" for n in range(SLICES)]
        with ThreadPoolExecutor(SLICES) as pool:
            made = [pod(name, SLEEPING, claims={"gpu": one}, cpu="1m") for name in names]
            list(pool.map(api.create, made))
            for name in names:
                work.wait_for_phase(name, "Running")
            assert held(site) == SLICES
            events = [(e["reason"], e["message"]) for e in api.list("Event")]
            assert not [each for each in events if each[0] == "FailedPrepareDynamicResources"]
            list(pool.map(lambda name: api.delete("Pod", name), names))
        wait_for("free slices", lambda: not held(site))
