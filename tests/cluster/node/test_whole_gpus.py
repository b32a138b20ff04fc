"""Whole GPUs of which nothing is on the hardware: who has one is what the node says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.pods import pod
from tests.cluster.node.test_holders import strip_and_delete

SOON = 30.0
"""Less than the minute after which kubelet repeats a failed Prepare by itself."""

ENDING = ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1; done"]
"""A container that ends when it is told to: a restarted kubelet gives it time."""


@pytest.fixture(scope="module")
def node(binaries: Binaries, root: Path) -> Iterator[NodeSite]:
    gpus = ("A100-SXM4-40GB", "A100-SXM4-40GB")
    with running_node(binaries, root / "whole", name="whole", gpus=gpus, mig=False) as site:
        site.kubelet.configure(syncFrequency="1m0s")
        wait_for("class", lambda: site.api.find("DeviceClass", "gpu.dra.dev") is not None)
        yield site


@pytest.fixture
def site(node: NodeSite) -> Iterator[NodeSite]:
    """The node without pods and without a quota."""
    yield node
    node.workload.clear()
    annotations = {"mig.dra.dev/devices-per-namespace": None}
    node.api.patch("DeviceClass", "gpu.dra.dev", {"metadata": {"annotations": annotations}})


def run(site: NodeSite, name: str, **spec: Any) -> Obj:
    """A pod with a claim for a whole GPU."""
    claims = {"gpu": site.workload.claim(name, device_class="gpu.dra.dev")}
    return site.workload.create(pod(name, {"main": ENDING}, claims=claims, **spec))


def device(site: NodeSite, name: str) -> str:
    """The GPU that a claim was given, or nothing."""
    status = site.api.get("ResourceClaim", name).get("status", {})
    results = status.get("allocation", {}).get("devices", {}).get("results", [])
    return str(results[0]["device"]) if results else ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("others", [0, 1], ids=["another is free", "no other is free"])
def test_a_pod_that_was_force_deleted_and_made_anew_does_not_wait_for_kubelets_retry(
    site: NodeSite, others: int
) -> None:
    for number in range(others):
        run(site, f"other-{number}")
        site.workload.wait_for_phase(f"other-{number}", "Running")
    claims = {"gpu": site.workload.template("again", device_class="gpu.dra.dev")}
    body = pod("again", {"main": ["sh", "-c", "trap '' TERM; sleep 1000000"]}, claims=claims)
    site.workload.create(body)
    site.workload.wait_for_phase("again", "Running")
    for _ in range(6):
        site.api.delete("Pod", "again", grace=0)
        site.api.create(body)
        site.workload.wait_for_phase("again", "Running", timeout=SOON)


def stay(_: NodeSite) -> None:
    """Nothing else happens."""


def change_leader(site: NodeSite) -> None:
    site.driver.controller.kill()
    site.driver.controller.start()


def restart_kubelet(site: NodeSite) -> None:
    kubelet: KubeletNode = site.kubelet
    kubelet.process.stop()
    kubelet.process.start()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("then", [stay, change_leader, restart_kubelet])
def test_a_quota_counts_a_gpu_whose_claim_was_deleted_under_its_pod(
    site: NodeSite, then: Callable[[NodeSite], None]
) -> None:
    annotations = {"mig.dra.dev/devices-per-namespace": "1"}
    site.api.patch("DeviceClass", "gpu.dra.dev", {"metadata": {"annotations": annotations}})
    run(site, "first")
    site.workload.wait_for_phase("first", "Running")
    strip_and_delete(site.api, "first")
    then(site)
    run(site, "second")
    wait_for(
        "word on the quota",
        lambda: device(site, "second") or "WaitingForQuota" in site.told("second"),
        timeout=SOON,
        context=site.workload.describe,
    )
    assert not device(site, "second")
    site.api.delete("Pod", "first")
    # A kubelet that starts and does not find the pod any more unprepares its claims after a minute.
    site.workload.wait_for_phase("second", "Running", timeout=3 * SOON)
