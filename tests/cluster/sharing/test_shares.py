"""Several claims on one GPU or slice: counted by a real kube-scheduler, for a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import NODE, Binaries
from hack.cluster.cluster import Cluster, Shape
from sim.processes import wait_for
from tests.cluster.allocators.test_examples import example
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload
from tests.cluster.node.test_slice_pod import SHOW, shown

SHAPE = Shape({"one": ("H100-80GB-HBM3",)})
CLASS = {"mode": "whole", "migMode": "switch", "shares": 4, "sliceShares": 4}
"""A Hopper: its MIG mode needs no reset to go off, or on."""
MODE = "mig.dra.dev/mode"


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, root: Path) -> Iterator[Cluster]:
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    home = root / "sh"
    home.mkdir()
    values = {"allocator": "scheduler", "nodeClasses": {"classes": {"default": CLASS}}}
    with Cluster(binaries, home, SHAPE, values=values) as running:
        wait_for("the device", lambda: published(running), context=running.tails)
        yield running


@pytest.fixture
def workload(cluster: Cluster) -> Iterator[Workload]:
    tracked = Workload(cluster.control_plane.api, tails=cluster.tails)
    yield tracked
    tracked.clear()


def published(cluster: Cluster, type_of: str = "gpu-share") -> Obj | None:
    """The first device of a type that may be allocated several times."""
    slices = cluster.control_plane.api.list("ResourceSlice", fieldSelector="spec.nodeName=one")
    devices = [d for s in slices for d in s["spec"].get("devices", [])]
    several = (d for d in devices if d.get("allowMultipleAllocations"))
    return next((d for d in several if d["attributes"]["type"] == {"string": type_of}), None)


def settled(cluster: Cluster, name: str) -> str:
    conditions = cluster.control_plane.api.get("Pod", name).get("status", {}).get("conditions", [])
    return next((c["message"] for c in conditions if c.get("reason") == "Unschedulable"), "")


def result(claim: Obj) -> Obj:
    (found,) = claim["status"]["allocation"]["devices"]["results"]
    return dict(found)


def test_kube_scheduler_counts_shares_and_kubelet_hears_of_each(
    cluster: Cluster, workload: Workload
) -> None:
    api = cluster.control_plane.api
    device = published(cluster)
    assert device is not None
    assert device["capacity"]["memory"]["requestPolicy"]["default"] == "20389Mi"
    for body in example("shares"):
        if body["kind"] == "ResourceClaimTemplate":
            workload.create(body)
    large, usual = ({"resourceClaimTemplateName": f"share-{n}"} for n in ("large", "usual"))
    workload.create(pod("first", SLEEPING, claims={"gpu": large}))
    workload.wait_for_phase("first", "Running")
    workload.create(pod("second", SLEEPING, claims={"gpu": usual}))
    workload.wait_for_phase("second", "Running")
    claims = [workload.claim_of(name) for name in ("first", "second")]
    results = [result(claim) for claim in claims if claim]
    assert [r["device"] for r in results] == ["gpu-0", "gpu-0"]
    assert results[0]["consumedCapacity"]["memory"] == "60000Mi"
    assert results[0]["shareID"] != results[1]["shareID"]

    def told() -> bool:
        found = [workload.claim_of(name) for name in ("first", "second")]
        shown = [d for claim in found if claim for d in claim["status"].get("devices", [])]
        return [d.get("shareID") for d in shown] == [r["shareID"] for r in results]

    wait_for("status.devices", told, context=cluster.tails)
    workload.create(pod("third", SLEEPING, claims={"gpu": large}))
    wait_for("refusal", lambda: settled(cluster, "third"), context=cluster.tails)
    api.delete("Pod", "first", grace=0)
    workload.wait_for_phase("third", "Running", timeout=90)
    assert result(workload.claim_of("third") or {})["device"] == "gpu-0"


def test_kube_scheduler_counts_shares_of_a_slice_whose_counters_it_takes_once(
    cluster: Cluster, workload: Workload
) -> None:
    api = cluster.control_plane.api
    api.patch("Node", "one", {"metadata": {"labels": {MODE: "on-demand"}}})
    wait_for("shares", lambda: published(cluster, "mig-share"), context=cluster.tails, timeout=60)
    for body in example("slice-shares"):
        if body["kind"] == "ResourceClaimTemplate":
            workload.create(body)
    large, usual = ({"resourceClaimTemplateName": f"slice-share-{n}"} for n in ("large", "usual"))
    for name, claim in (("first", large), ("second", usual), ("third", usual)):
        workload.create(pod(name, SLEEPING, claims={"slice": claim}))
        workload.wait_for_phase(name, "Running")
    results = [result(workload.claim_of(n) or {}) for n in ("first", "second", "third")]
    (shared,) = {r["device"] for r in results[:2]}
    assert shared.startswith("gpu-0-mig-1g10gb-")
    assert shared.endswith("-share")
    assert results[0]["consumedCapacity"]["memory"] == "6000Mi"
    assert results[2]["device"] != shared, "the memory of a third is not left"
    five = workload.template("five", device_class="mig-1g.10gb", count=5)
    workload.create(pod("alone", SLEEPING, claims={"slices": five}))
    workload.wait_for_phase("alone", "Running")
    last = workload.template("last", device_class="mig-1g.10gb")
    workload.create(pod("last", SLEEPING, claims={"slice": last}))
    wait_for("refusal", lambda: settled(cluster, "last"), context=cluster.tails)
    for name in ("first", "second"):
        api.delete("Pod", name, grace=0)
    workload.wait_for_phase("last", "Running", timeout=90)
    found = result(workload.claim_of("last") or {})["device"]
    assert found == shared.removesuffix("-share")


def test_pods_that_share_a_slice_have_one_instance_until_the_last_has_ended(
    cluster: Cluster, workload: Workload
) -> None:
    api, node = cluster.control_plane.api, cluster.nodes["one"]
    api.patch("Node", "one", {"metadata": {"labels": {MODE: "on-demand"}}})
    wait_for("shares", lambda: published(cluster, "mig-share"), context=cluster.tails, timeout=60)
    template = next(b for b in example("slice-shares") if b["kind"] == "ResourceClaimTemplate")
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"].pop("capacity")
    workload.create(template)
    claims = {"slice": {"resourceClaimTemplateName": template["metadata"]["name"]}}
    nodes = []
    for name in ("first", "second"):
        workload.create(pod(name, {"main": ["sh", "-c", SHOW]}, claims=claims))
        running = workload.wait_for_phase(name, "Running")
        nodes.append(shown(node, running, "main"))
    assert nodes[0] == nodes[1], "they see the same device nodes"
    held = [workload.claim_of(name) or {} for name in ("first", "second")]
    assert result(held[0])["device"] == result(held[1])["device"]

    def instances() -> list[tuple[str, str, int, str]]:
        """Every instance of the node: UID of its claim, UUID, id and state."""
        (gpu,) = api.get("MigNode", "one")["status"]["gpus"]
        names = ("uuid", "gpuInstanceID", "state")
        return [(i["claim"]["uid"], *(i[n] for n in names)) for i in gpu.get("instances", [])]

    wait_for("both", lambda: len(instances()) == 2, context=cluster.tails)
    assert {uid for uid, *_ in instances()} == {claim["metadata"]["uid"] for claim in held}
    ((uuid, gi_id),) = {(uuid, gi_id) for _, uuid, gi_id, _ in instances()}

    def told() -> set[str]:
        found = [workload.claim_of(name) or {} for name in ("first", "second")]
        shown = [d for claim in found for d in claim["status"].get("devices", [])]
        return {d["data"]["migUUID"] for d in shown} if len(shown) == 2 else set()

    assert wait_for("status.devices", told, context=cluster.tails) == {uuid}
    api.delete("Pod", "first", grace=0)
    alone = [(held[1]["metadata"]["uid"], uuid, gi_id, "prepared")]
    wait_for("one", lambda: instances() == alone, context=cluster.tails, timeout=60)
    api.delete("Pod", "second", grace=0)
    wait_for("none", lambda: not instances(), context=cluster.tails, timeout=60)
