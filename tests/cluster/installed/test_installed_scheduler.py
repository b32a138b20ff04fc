"""The chart with `allocator: scheduler` on a real node: unmodified pods get slices by limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import NODE, Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.cluster import Cluster, Shape
from sim.processes import wait_for
from tests.cluster.harness.audit import audit
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import Workload
from tests.cluster.node.test_slice_pod import SHOW

SHAPE = Shape({"one": ("A100-SXM4-40GB", "A100-SXM4-40GB")})


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, root: Path) -> Iterator[Cluster]:
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    home = root / "is"
    home.mkdir()
    with Cluster(binaries, home, SHAPE, values={"allocator": "scheduler"}) as running:
        wait_for("slices", lambda: len(devices(running)) == 50, context=running.tails)
        yield running


@pytest.fixture
def workload(cluster: Cluster) -> Iterator[Workload]:
    tracked = Workload(cluster.control_plane.api, tails=cluster.tails)
    yield tracked
    tracked.clear()


def slices(cluster: Cluster) -> list[Obj]:
    return cluster.control_plane.api.list("ResourceSlice", fieldSelector="spec.nodeName=one")


def devices(cluster: Cluster) -> list[str]:
    return [d["name"] for s in slices(cluster) for d in s["spec"].get("devices", [])]


def instances(cluster: Cluster) -> list[Obj]:
    gpus = cluster.control_plane.api.get("MigNode", "one")["status"]["gpus"]
    return [instance for gpu in gpus for instance in gpu.get("instances", [])]


def by_limits(name: str, resource: str) -> Obj:
    body = pod(name, {"main": ["sh", "-c", SHOW]})
    (container,) = body["spec"]["containers"]
    container["resources"] = {"limits": {resource: "1"}}
    return body


def test_a_pod_with_limits_runs_with_its_slice(cluster: Cluster, workload: Workload) -> None:
    api = cluster.control_plane.api
    workload.create(by_limits("limits", "nvidia.com/mig-3g.20gb"))
    running = workload.wait_for_phase("limits", "Running")
    name = running["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    (instance,) = instances(cluster)
    assert (instance["profile"], instance["state"]) == ("3g.20gb", "prepared")
    assert instance["claim"]["name"] == name
    lines = wait_for("output", lambda: cluster.nodes["one"].log(running, "main").splitlines()[2:])
    assert all("nvidia-cap" in each for each in lines)
    wait_for(
        "status.devices",
        lambda: api.get("ResourceClaim", name)["status"].get("devices"),
        context=cluster.tails,
    )
    workload.clear()
    wait_for("free GPU", lambda: instances(cluster) == [], context=cluster.tails)
    assert list(cluster.nodes["one"].cdi_root.glob("*claim*")) == []


def test_slices_outlive_kubelets_wiping_and_pods_keep_theirs(
    cluster: Cluster, workload: Workload
) -> None:
    workload.create(by_limits("before", "nvidia.com/mig-1g.5gb"))
    workload.wait_for_phase("before", "Running")
    (held,) = instances(cluster)
    before = {s["metadata"]["uid"] for s in slices(cluster)}
    kubelet = cluster.nodes["one"].process
    kubelet.stop()
    kubelet.start()

    def anew() -> bool:
        uids = {s["metadata"]["uid"] for s in slices(cluster)}
        return before.isdisjoint(uids) and len(devices(cluster)) == 50

    wait_for("new slices", anew, timeout=90, context=cluster.tails)
    workload.create(by_limits("after", "nvidia.com/mig-1g.5gb"))
    workload.wait_for_phase("after", "Running")
    now = instances(cluster)
    assert held in now
    assert len({(i["placement"]["start"], i["gpuInstanceID"]) for i in now}) == len(now) == 2


def test_nothing_that_the_daemons_asked_for_was_denied(cluster: Cluster) -> None:
    accounts = f"system:serviceaccount:{NAMESPACE}:"
    asked = [r for r in audit(cluster.control_plane).requests() if r.user.startswith(accounts)]
    slices = {r.verb for r in asked if r.resource == "resourceslices"}
    assert slices >= {"list", "create"}  # a watch is logged when it ends, unless it is denied
    # The probe for the layout of 1.34, which other versions refuse.
    probed = [r for r in asked if (r.resource, r.status) == ("resourceslices", 422)]
    assert len(probed) == 1
    assert [r for r in asked if r.status in {401, 403, 422} and r not in probed] == []
