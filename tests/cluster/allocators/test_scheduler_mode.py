"""Nodes that kube-scheduler allocates: what it makes of our ResourceSlices, on a real one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.binaries import Binaries
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import (
    FINALIZER,
    GATE_OFF,
    Site,
    node,
    settled,
    site,
    start,
    template,
)
from tests.cluster.harness.workload import SLEEPING, node_of

PROFILES = ("1g.5gb", "3g.20gb", "2g.10gb", "1g.5gb.me", "1g.10gb", "4g.20gb", "1g.5gb")


@pytest.fixture(scope="module")
def mixed(binaries: Binaries, root: Path) -> Iterator[Site]:
    """Two nodes of kube-scheduler, with three GPUs and one, and one node of the controller."""
    nodes = {"big": ("scheduler", 3), "small": ("scheduler", 1), "ours": ("controller", 1)}
    with site(binaries, root / "sm", nodes, {}) as made:
        for node in ("big", "small"):
            made.wait(f"slices of {node}", lambda node=node: made.published(node))
        for profile in set(PROFILES):
            template(made.api, f"mig-{profile}")
        yield made


@pytest.fixture
def pods(mixed: Site) -> Iterator[list[str]]:
    """Names of pods that are deleted after the test, with their claims."""
    made: list[str] = []
    yield made
    for name in made:
        mixed.api.delete("Pod", name, grace=0)
    mixed.wait("end of all claims", lambda: mixed.api.list("ResourceClaim") == [])


def test_the_server_keeps_every_slice_as_it_was_sent(mixed: Site) -> None:
    for name, gpus in (("big", 3), ("small", 1)):
        slices = mixed.slices(name)
        devices = [d for s in slices for d in s["spec"].get("devices", [])]
        assert len(devices) == 25 * gpus
        assert all(d["consumesCounters"] for d in devices)
        sets = [c["name"] for s in slices for c in s["spec"].get("sharedCounters", [])]
        assert sets == [f"gpu-{i}-counter-set" for i in range(gpus)]
        assert {s["spec"]["pool"]["generation"] for s in slices} == {1}
        assert {s["spec"]["pool"]["resourceSliceCount"] for s in slices} == {len(slices)}
    assert mixed.offered("ours") == []


def test_a_mix_fills_the_gpus_and_nothing_overlaps(mixed: Site, pods: list[str]) -> None:
    api = mixed.api
    for index, profile in zip(range(30), itertools.cycle(PROFILES), strict=False):
        pods.append(start(api, f"mix-{index}", profile, allocator="scheduler"))
    mixed.wait("decisions", lambda: all(settled(api, p) for p in pods), timeout=90)
    mixed.assert_disjoint()
    bound = [p for p in pods if settled(api, p) == "bound"]
    devices = mixed.devices("big", "small")
    assert len(devices) == len(bound) >= 12
    assert len({(n, d.minor) for n, d in devices}) == 4
    for claim in api.list("ResourceClaim"):
        assert FINALIZER not in claim["metadata"].get("finalizers", [])


def test_unmodified_pods_with_limits_are_bound(mixed: Site, pods: list[str]) -> None:
    api = mixed.api
    for index in range(3):
        body = pod(f"limits-{index}", SLEEPING)
        (container,) = body["spec"]["containers"]
        container["resources"] = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
        api.create(body)
        pods.append(f"limits-{index}")
    mixed.wait("nodes", lambda: all(node(api, p) for p in pods))
    assert {node(api, p) for p in pods} <= {"big", "small"}
    devices = mixed.devices()
    assert [d.profile_label for _, d in devices] == ["1g5gb"] * 3
    mixed.assert_disjoint()
    status = api.get("Pod", pods[0])["status"]["extendedResourceClaimStatus"]
    assert status["requestMappings"][0]["resourceName"] == "nvidia.com/mig-1g.5gb"


def test_the_controller_keeps_to_its_own_nodes(mixed: Site, pods: list[str]) -> None:
    api = mixed.api
    pods.append(start(api, "ours-0", "2g.10gb", allocator="controller"))
    mixed.wait("node", lambda: node(api, "ours-0"))
    (claim,) = api.list("ResourceClaim")
    assert (node_of(claim), claim["metadata"]["finalizers"]) == ("ours", [FINALIZER])
    # Wherever: 8 of 3g fill all four GPUs of the scheduler, and the rest of the controller's.
    pods += [start(api, f"any-{index}", "3g.20gb") for index in range(9)]
    versions = itertools.count()

    def bound() -> bool:
        left = [p for p in pods if not node(api, p)]
        if any(settled(api, p) == "refused" for p in left):
            # For a place that kube-scheduler had meant for the pod that the controller then served:
            # it looks again after five minutes (dynamicresources.go, EventsToRegister, 1.36.2: not
            # when an allocation fails), or when a class changes.
            change = {"metadata": {"annotations": {"example.com/look": str(next(versions))}}}
            api.patch("DeviceClass", "mig-3g.20gb", change)
        return not left

    mixed.wait("nodes", bound, timeout=90)
    mixed.assert_disjoint()
    assert len(mixed.devices("ours")) == 2
    for claim in api.list("ResourceClaim"):
        ours = node_of(claim) == "ours"
        kept = "resource.kubernetes.io/delete-protection" in claim["metadata"]["finalizers"]
        assert kept is not ours


def test_a_node_is_handed_over_with_its_slices_in_use(mixed: Site, pods: list[str]) -> None:
    api, driver = mixed.api, mixed.driver
    pods.append(start(api, "before", "3g.20gb", allocator="controller"))
    mixed.wait("node", lambda: node(api, "before"))
    ((_, kept),) = mixed.devices("ours")
    driver.plugins["ours"].stop()
    with contextlib.ExitStack() as stack:
        successor = driver.successor("ours", "--allocator", "scheduler")
        stack.callback(driver.plugins["ours"].start)
        stack.callback(successor.stop)
        successor.start()
        mixed.wait("slices", lambda: mixed.published("ours"))
        assert api.get("MigNode", "ours")["spec"]["allocator"] == "scheduler"
        after = [f"after-{index}" for index in range(5)]
        pods += [start(api, name, "1g.5gb", allocator="controller") for name in after]
        mixed.wait("decisions", lambda: all(settled(api, p) for p in pods))
        mixed.assert_disjoint()
        devices = [d for _, d in mixed.devices("ours")]
        # 3g takes four memory slices of eight, the last of which is no start of 1g.
        assert kept in devices
        assert len(devices) == (4 if kept.start == 4 else 3) + 1
    mixed.wait("nothing offered", lambda: mixed.offered("ours") == [])
    mixed.wait(
        "the controller's turn",
        lambda: api.get("MigNode", "ours")["spec"]["allocator"] == "controller",
    )
    mixed.assert_disjoint()


def test_where_the_gate_is_off_the_controller_allocates(binaries: Binaries, root: Path) -> None:
    with site(binaries, root / "go", {"lone": ("scheduler", 1)}, GATE_OFF) as made:
        api = made.api
        made.wait(
            "the controller's turn",
            lambda: api.get("MigNode", "lone")["spec"]["allocator"] == "controller",
        )
        assert made.offered("lone") == []
        (condition,) = (
            c
            for c in api.get("MigNode", "lone")["status"]["conditions"]
            if c["type"] == "SlicesPublished"
        )
        assert (condition["status"], condition["reason"]) == ("False", "GateOff")
        assert "DRAPartitionableDevices" in condition["message"]
        made.wait(
            "event", lambda: any(e["reason"] == "SlicesNotPublished" for e in api.list("Event"))
        )
        template(api, "mig-3g.20gb")
        start(api, "lone-0", "3g.20gb")
        made.wait("node", lambda: node(api, "lone-0"))
        (claim,) = api.list("ResourceClaim")
        assert claim["metadata"]["finalizers"] == [FINALIZER]
