"""``kubectl mig explain`` names what is truly in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dra.inventory import Allocator, ClaimRef, Instance
from dra.kube.resources import PODS, RESOURCE_CLAIMS, Obj
from tests.cli.conftest import Mig
from tests.cli.world import LEASE_SECONDS, World
from tests.controller.objects import gpu, instance, request
from tests.dra.gpus import A100

WAITS = "waiting"


@dataclass(frozen=True)
class Situation:
    """A cluster in which pod ``waiting`` waits, and what its explanation has to say.

    ``says`` are words of the first finding: who or what is in the way.
    """

    name: str
    build: Callable[[World], None]
    reason: str
    says: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


def _pod(world: World, *requests: Obj, pod: dict[str, Any] | None = None, **claim: Any) -> None:
    world.add_claim("wanted", *requests, **claim)
    world.add_pod(WAITS, "wanted", **(pod or {}))


def _full(world: World, *, node: str = "node-a") -> None:
    """All of the node's one GPU is held by two claims of running pods."""
    world.hold("first", node, "gpu-0-mig-3g20gb-9-0", pod_name="trainer-1")
    world.hold("second", node, "gpu-0-mig-3g20gb-9-4", pod_name="trainer-2")


def _held(made: Instance, name: str, message: str = "") -> Instance:
    return replace(made, claim=ClaimRef("default", name, f"uid-{name}"), message=message)


def no_profile_that_large(world: World) -> None:
    world.add_node("node-a")
    world.add_class("mig-7g.80gb", "device.attributes['mig.dra.dev'].profile == '7g.80gb'")
    _pod(world, request("r", "mig-7g.80gb"))


def all_taken(world: World) -> None:
    world.add_node("node-a")
    _full(world)
    _pod(world, request("r", "mig-3g.20gb"))


def one_large_claim_in_the_way(world: World) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    _full(world)
    world.hold("small", "node-a", "gpu-1-mig-1g5gb-19-2", pod_name="notebook")
    _pod(world, request("r", "mig-7g.40gb"))


def compute_slices_lack(world: World) -> None:
    world.add_node("node-a")
    for start in range(7):
        world.hold(f"c{start}", "node-a", f"gpu-0-mig-1g5gb-19-{start}")
    _pod(world)


def mig_off(world: World) -> None:
    made = gpu(0, "node-a")
    off = replace(made, mig_enabled=False, mig_pending=False, reason="MIGDisabled")
    world.add_node("node-a", off)
    _pod(world)


def mode_pending(world: World) -> None:
    world.add_node("node-a", replace(gpu(0, "node-a"), mig_pending=False))
    _pod(world)


def foreign(world: World) -> None:
    made = instance("7g.40gb", 0, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    _pod(world)


def mig_manager(world: World) -> None:
    text = "mig-manager is changing this node's GPUs"
    made = gpu(0, "node-a", unavailable=text, reason="MIGManagerActive")
    world.add_node("node-a", made)
    _pod(world)


def device_plugin(world: World) -> None:
    text = "a device plugin gives out this node's GPUs too (nvidia.com/gpu: 8)"
    made = gpu(0, "node-a", unavailable=text, reason="DevicePluginActive")
    world.add_node("node-a", made)
    _pod(world)


def reclaiming(world: World) -> None:
    left = _held(instance("7g.40gb", 0, state="reclaiming"), "gone", "in use by process 4711")
    world.add_node("node-a", gpu(0, "node-a", instances=(left,)))
    _pod(world)


def reclaimed_soon(world: World) -> None:
    """One half is held by a claim, the other is on its way out."""
    world.hold("stays", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="trainer-1")
    left = _held(instance("3g.20gb", 4, state="reclaiming"), "gone")
    world.add_node("node-a", gpu(0, "node-a", instances=(left,)))
    _pod(world, request("r", "mig-3g.20gb"))


def media_engine_taken(world: World) -> None:
    """Memory and compute are free, the one media engine is not."""
    profile = A100.by_name("1g.5gb+me")
    assert profile is not None
    world.add_node("node-a")
    world.hold("video", "node-a", f"gpu-0-mig-1g5gb-me-{profile.id}-0", pod_name="encoder")
    _pod(world, request("r", "mig-1g.5gb.me"))


def tainted(world: World) -> None:
    taint = {"key": "team", "value": "red", "effect": "NoSchedule"}
    world.add_node("node-a", taints=[taint])
    _pod(world)


def cordoned(world: World) -> None:
    world.add_node("node-a", unschedulable=True)
    _pod(world)


def not_ready(world: World) -> None:
    world.add_node("node-a", ready=False)
    _pod(world)


def selector(world: World) -> None:
    world.add_node("node-a")
    _pod(world, pod={"nodeSelector": {"zone": "b"}})


def affinity(world: World) -> None:
    world.add_node("node-a")
    expression = {"key": "zone", "operator": "In", "values": ["b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    _pod(world, pod={"affinity": {"nodeAffinity": terms}})


def too_little_cpu(world: World) -> None:
    world.add_node("node-a", cpu="4")
    world.add_pod("busy", nodeName="node-a", cpu="3")
    _pod(world, pod={"cpu": "2"})


def no_leader(world: World) -> None:
    world.add_node("node-a")
    _pod(world)


def lease_ran_out(world: World) -> None:
    world.lead(seconds_ago=2 * LEASE_SECONDS)
    no_leader(world)


def driver_not_ready(world: World) -> None:
    world.add_node("node-a")
    world.say_not_ready("node-a", "the journal cannot be written: no space left on device")
    _pod(world)


def bad_config(world: World) -> None:
    world.add_node("node-a")
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"method": "spread"},
    }
    opaque = {"driver": "mig.dra.dev", "parameters": parameters}
    _pod(world, request(), config=[{"opaque": opaque}])


def no_class(world: World) -> None:
    world.add_node("node-a")
    _pod(world, request("r", "mig-9g.99gb"))


def selects_nothing(world: World) -> None:
    world.add_node("node-a")
    _pod(world, request("r", "mig.dra.dev", "device.attributes['mig.dra.dev'].profile == '5g.1gb'"))


def bad_cel(world: World) -> None:
    world.add_node("node-a")
    _pod(world, request("r", "mig.dra.dev", "device.attributes['mig.dra.dev'].colour == 'red'"))


def gated(world: World) -> None:
    world.add_node("node-a")
    _pod(world, pod={"schedulingGates": [{"name": "example.com/budget"}]})


def template_missing(world: World) -> None:
    world.add_node("node-a")
    entry = {"name": "gpu", "resourceClaimTemplateName": "slce"}
    world.add_pod(WAITS, resourceClaims=[entry])


def quota(world: World) -> None:
    world.add_node("node-a")
    world.add_template("slice")
    entry = {"name": "gpu", "resourceClaimTemplateName": "slice"}
    made = world.add_pod(WAITS, resourceClaims=[entry])
    text = "PodResourceClaim gpu: resource claim: exceeded quota: team, requested: count/r=1"
    world.tell(made, "FailedResourceClaimCreation", text, source="resource_claim")


def claim_missing(world: World) -> None:
    world.add_node("node-a")
    world.add_pod(WAITS, "wanted")


def mixed(world: World) -> None:
    world.add_node("node-a")
    world.add_class("nic.example.com", "device.driver == 'nic.example.com'")
    _pod(world, request("a"), request("b", "nic.example.com"))


def not_together(world: World) -> None:
    world.add_node("node-a")
    _pod(world, request("a", "mig-4g.20gb"), request("b", "mig-4g.20gb"))


def too_many_of_one(world: World) -> None:
    world.add_node("node-a")
    _pod(world, request("a", "mig-3g.20gb", count=3))


def by_scheduler(world: World) -> None:
    world.add_node("node-a", allocator=Allocator.SCHEDULER)
    _pod(world)


def no_mignode(world: World) -> None:
    _pod(world)


def taken_back(world: World) -> None:
    world.add_node("node-a")
    world.lead()
    _pod(world)
    told = world.api.get(RESOURCE_CLAIMS, "wanted", namespace="default")
    world.tell(
        told,
        "AllocationTakenBack",
        "the allocation on node node-a was taken back",
        source="mig.dra.dev/controller",
    )


def elsewhere(world: World) -> None:
    world.add_node("node-a")
    world.add_node("node-b")
    _full(world)
    world.hold("other", "node-a", "gpu-0-mig-1g5gb-19-0")
    world.add_claim("wanted")
    world.add_pod(WAITS, "wanted", "other")


_LEADS = (no_leader, lease_ran_out, taken_back)
SITUATIONS = [
    Situation("no profile that large", no_profile_that_large, "NoSuchProfile", ("'r'", "7g.40gb")),
    Situation("all taken", all_taken, "NoRoom", ("node-a gpu-0", "default/first", "pod trainer-1")),
    Situation(
        "the smallest claim in the way is named",
        one_large_claim_in_the_way,
        "NoRoom",
        ("gpu-1", "default/small of pod notebook (1g.5gb at 2:1)"),
    ),
    Situation("memory is free, compute is not", compute_slices_lack, "NoRoom", ("default/c0",)),
    Situation("MIG off", mig_off, "MIGDisabled", ("node-a gpu-0", "MIG mode is off")),
    Situation("MIG mode pending", mode_pending, "MIGModePending", ("node-a gpu-0",)),
    Situation("foreign", foreign, "ForeignInstance", ("gpu-0", "foreign", "7g.40gb at 0:8")),
    Situation("mig-manager", mig_manager, "MIGManagerActive", ("mig-manager",)),
    Situation("device plugin", device_plugin, "DevicePluginActive", ("nvidia.com/gpu: 8",)),
    Situation("reclaiming", reclaiming, "Reclaiming", ("default/gone", "in use by process 4711")),
    Situation("what goes anyway is named", reclaimed_soon, "Reclaiming", ("default/gone",)),
    Situation("engines lack", media_engine_taken, "NoRoom", ("default/video of pod encoder",)),
    Situation("tainted", tainted, "UntoleratedTaint", ("node-a", "team=red:NoSchedule")),
    Situation("cordoned", cordoned, "NodeUnschedulable", ("node-a",)),
    Situation("node not ready", not_ready, "NodeNotReady", ("node-a",)),
    Situation("nodeSelector", selector, "NodeSelectorMismatch", ("node-a",)),
    Situation("node affinity", affinity, "NodeAffinityMismatch", ("node-a",)),
    Situation("cpu", too_little_cpu, "InsufficientResources", ("node-a", "insufficient cpu")),
    Situation("no controller", no_leader, "ControllerNotRunning", ("mig.dra.dev-controller",)),
    Situation("lease ran out", lease_ran_out, "ControllerNotRunning", ("has run out",)),
    Situation("plugin not serving", driver_not_ready, "DriverNotReady", ("no space left",)),
    Situation("bad configuration", bad_config, "InvalidConfig", ("placement.method", "wanted")),
    Situation("no such class", no_class, "NoSuchDeviceClass", ("'mig-9g.99gb'",)),
    Situation("selects nothing", selects_nothing, "NoSuchProfile", ("'r'",)),
    Situation("CEL that fails", bad_cel, "InvalidSelector", ("'r'", "colour")),
    Situation("gated", gated, "SchedulingGated", ("example.com/budget",)),
    Situation("template missing", template_missing, "TemplateMissing", ("default/slce",)),
    Situation("quota", quota, "ClaimNotCreated", ("exceeded quota: team",)),
    Situation("claim missing", claim_missing, "ClaimMissing", ("default/wanted",)),
    Situation("mixed drivers", mixed, "MixedDrivers", ("nic.example.com",)),
    Situation("not together", not_together, "NoRoomTogether", ("node-a",)),
    Situation("too many of one", too_many_of_one, "NoRoomTogether", ("3 x mig-3g.20gb",)),
    Situation("the scheduler allocates", by_scheduler, "AllocatedByScheduler", ("node-a",)),
    Situation("no MigNode", no_mignode, "NoMigNode", ("no MigNode exists",)),
    Situation("taken back", taken_back, "AllocationTakenBack", ("node node-a was taken back",)),
    Situation(
        "bound to a full node by another claim",
        elsewhere,
        "NoRoom",
        ("node-a", "default/first"),
    ),
]


@pytest.fixture
def classes(world: World) -> World:
    world.add_classes("1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    return world


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_true_blocker_comes_first(situation: Situation, classes: World, mig: Mig) -> None:
    situation.build(classes)
    if situation.build not in _LEADS:
        classes.lead()
    ran = mig("explain", WAITS, "-o", "json")
    found = ran.json
    assert (ran.code, found["state"]) == (1, "Waiting")
    findings = {f["reason"]: f["message"] for f in found["findings"]}
    assert found["reason"] == situation.reason, findings
    for words in situation.says:
        assert words in findings[situation.reason]


def test_the_claim_says_the_same_as_its_pod(classes: World, mig: Mig) -> None:
    all_taken(classes)
    classes.lead()
    by_pod, by_claim = (mig("explain", s, "-o", "json").json for s in (WAITS, "claim/wanted"))
    assert by_claim["object"]["kind"] == "ResourceClaim"
    assert by_claim["findings"] == by_pod["findings"]
    assert by_claim["nodes"] == by_pod["nodes"]


def test_text_names_blockers_per_gpu_and_the_remedy(classes: World, mig: Mig) -> None:
    all_taken(classes)
    classes.lead()
    shown = mig("explain", f"pod/{WAITS}").out
    assert shown.startswith(
        "pod default/waiting waits\n  NoRoom: node-a gpu-0: no room for 3g.20gb"
    )
    assert "kubectl mig profiles" in shown
    assert "gpu-0  no room for 3g.20gb beside claim default/first of pod trainer-1" in shown


def test_a_claim_without_a_pod_waits_for_one(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.add_claim("lonely")
    found = mig("explain", "lonely", "-o", "json").json
    assert found["reason"] == "NoPod"
    assert found["nodes"][0]["reason"] == "Fits"


def test_a_running_pod_is_told_where_its_slice_is(classes: World, mig: Mig) -> None:
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="runner")
    uid = classes.api.get(RESOURCE_CLAIMS, "c", namespace="default")["metadata"]["uid"]
    made = instance("3g.20gb", 4)
    made = replace(made, claim=ClaimRef("default", "c", uid), uuid="MIG-1")
    classes.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    ran = mig("explain", "runner")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "pod default/runner runs",
        "  claim default/c: 3g.20gb at 4:4 of gpu-0 on node-a: MIG-1, prepared",
    ]


def test_a_bound_pod_that_cannot_be_prepared_says_why(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    held = classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "PrepareFailedPermanently",
        "message": "GPU is lost",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": "mig.dra.dev", "pool": "node-a-pool", "device": "gpu-0-mig-3g20gb-9-4"}
    status = {**held["status"], "devices": [{**device, "conditions": [condition]}]}
    classes.set_status(RESOURCE_CLAIMS, held, status)
    classes.add_pod(WAITS, "c", nodeName="node-a")
    found = mig("explain", WAITS, "-o", "json").json
    assert (found["state"], found["reason"]) == ("Starting", "PrepareFailedPermanently")
    assert "GPU is lost" in found["findings"][0]["message"]


def test_a_bound_pod_without_a_plugin_on_its_node_says_so(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    classes.add_pod(WAITS, "c", nodeName="node-a")
    classes.add_plugin("node-b", ready=True)
    found = mig("explain", WAITS, "-o", "json").json
    assert (found["state"], found["reason"]) == ("Starting", "PluginNotRunning")


def test_what_is_not_there_is_not_found(world: World, mig: Mig) -> None:
    for subject in ("nobody", "pod/nobody", "claim/nobody"):
        ran = mig("explain", subject)
        assert (ran.code, ran.out) == (4, "")
    assert mig("explain", "node/n").code == 2


def test_a_pod_that_has_ended_is_no_finding(world: World, mig: Mig) -> None:
    made = world.add_pod("done")
    world.set_status(PODS, made, {"phase": "Succeeded"})
    assert mig("explain", "done").code == 0
