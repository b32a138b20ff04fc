"""Why a pod waits: one cluster for each reason, and what ``explain`` has to say first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from dra.common.resources import DEVICE_CLASSES, PODS, Obj
from dra.gpu.inventory import AllocatorKind, ClaimRef, Instance
from tests.cli.world import LEASE_SECONDS, World
from tests.controller.helpers.objects import DRIVER, gpu, instance, request
from tests.dra.gpus import A100

WAITS = "waiting"
Build = Callable[[World], None]


@dataclass(frozen=True)
class Situation:
    """A cluster in which pod ``waiting`` waits, and what its explanation has to say.

    ``says`` are words of the first finding: who or what is in the way. A controller leads there, or
    ``build`` says whether one does.
    """

    name: str
    build: Build
    reason: str
    says: tuple[str, ...]
    leads: bool

    def __str__(self) -> str:
        return self.name


SITUATIONS: list[Situation] = []


def situation(name: str, reason: str, *says: str, leads: bool = True) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        SITUATIONS.append(Situation(name, build, reason, says, leads))
        return build

    return add


def waiting_pod(
    world: World, *requests: Obj, pod: dict[str, Any] | None = None, **claim: Any
) -> None:
    world.add_claim("wanted", *requests, **claim)
    world.add_pod(WAITS, "wanted", **(pod or {}))


def _full(world: World, *, node: str = "node-a") -> None:
    """All of the node's one GPU is held by two claims of running pods."""
    world.hold("first", node, "gpu-0-mig-3g20gb-9-0", pod_name="trainer-1")
    world.hold("second", node, "gpu-0-mig-3g20gb-9-4", pod_name="trainer-2")


def _held(made: Instance, name: str, message: str = "") -> Instance:
    return structs.replace(made, claim=ClaimRef("default", name, f"uid-{name}"), message=message)


@situation("no profile that large", "NoSuchProfile", "'r'", "7g.40gb")
def no_profile_that_large(world: World) -> None:
    world.add_node("node-a")
    world.add_class("mig-7g.80gb", "device.attributes['mig.dra.dev'].profile == '7g.80gb'")
    waiting_pod(world, request("r", "mig-7g.80gb"))


@situation("all taken", "NoRoom", "node-a gpu-0", "default/first", "pod trainer-1")
def all_taken(world: World) -> None:
    world.add_node("node-a")
    _full(world)
    waiting_pod(world, request("r", "mig-3g.20gb"))


@situation("over a quota", "WaitingForQuota", "holds 1 device, and the pod asks for 1 device")
def over_a_quota(world: World) -> None:
    world.add_node("node-a")
    world.hold("first", "node-a", "gpu-0-mig-1g5gb-19-0")
    limit = {"mig.dra.dev/devices-per-namespace": "1"}
    world.api.patch(DEVICE_CLASSES, "mig.dra.dev", {"metadata": {"annotations": limit}})
    waiting_pod(world, request("r", "mig.dra.dev"))


@situation(
    "the smallest claim in the way is named",
    "NoRoom",
    "gpu-1",
    "default/small of pod notebook (1g.5gb at 2:1)",
)
def one_large_claim_in_the_way(world: World) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    _full(world)
    world.hold("small", "node-a", "gpu-1-mig-1g5gb-19-2", pod_name="notebook")
    waiting_pod(world, request("r", "mig-7g.40gb"))


@situation("memory is free, compute is not", "NoRoom", "default/c0")
def compute_slices_lack(world: World) -> None:
    world.add_node("node-a")
    for start in range(7):
        world.hold(f"c{start}", "node-a", f"gpu-0-mig-1g5gb-19-{start}")
    waiting_pod(world)


@situation("MIG off", "MIGDisabled", "node-a gpu-0", "MIG is off")
def mig_off(world: World) -> None:
    made = gpu(0, "node-a")
    off = replace(made, mig_enabled=False, mig_pending=False, reason="MIGDisabled")
    world.add_node("node-a", off)
    waiting_pod(world)


@situation("MIG mode pending", "MIGModePending", "node-a gpu-0")
def mode_pending(world: World) -> None:
    world.add_node("node-a", replace(gpu(0, "node-a"), mig_pending=False))
    waiting_pod(world)


@situation(
    "foreign", "ForeignInstance", "gpu-0", "foreign", "7g.40gb at 0:8", "pod ml/x (nvidia.com/y)"
)
def foreign(world: World) -> None:
    users = "pod ml/x (nvidia.com/y)"
    made = structs.replace(instance("7g.40gb", 0, state="foreign"), message=users)
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    waiting_pod(world)


@situation("mig-manager", "MIGManagerActive", "mig-manager")
def mig_manager(world: World) -> None:
    text = "mig-manager is changing this node's GPUs"
    made = gpu(0, "node-a", unavailable=text, reason="MIGManagerActive")
    world.add_node("node-a", made)
    waiting_pod(world)


@situation("reclaiming", "Reclaiming", "default/gone", "in use by process 4711")
def reclaiming(world: World) -> None:
    left = _held(instance("7g.40gb", 0, state="reclaiming"), "gone", "in use by process 4711")
    world.add_node("node-a", gpu(0, "node-a", instances=(left,)))
    waiting_pod(world)


@situation("what goes anyway is named", "Reclaiming", "default/gone")
def reclaimed_soon(world: World) -> None:
    """One half is held by a claim, the other is on its way out."""
    world.hold("stays", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="trainer-1")
    left = _held(instance("3g.20gb", 4, state="reclaiming"), "gone")
    world.add_node("node-a", gpu(0, "node-a", instances=(left,)))
    waiting_pod(world, request("r", "mig-3g.20gb"))


@situation("engines lack", "NoRoom", "default/video of pod encoder")
def media_engine_taken(world: World) -> None:
    """Memory and compute are free, the one media engine is not."""
    profile = A100.by_name("1g.5gb+me")
    assert profile is not None
    world.add_node("node-a")
    world.hold("video", "node-a", f"gpu-0-mig-1g5gb-me-{profile.id}-0", pod_name="encoder")
    waiting_pod(world, request("r", "mig-1g.5gb.me"))


@situation("tainted", "UntoleratedTaint", "node-a", "team=red:NoSchedule")
def tainted(world: World) -> None:
    taint = {"key": "team", "value": "red", "effect": "NoSchedule"}
    world.add_node("node-a", taints=[taint])
    waiting_pod(world)


@situation("cordoned", "NodeUnschedulable", "node-a")
def cordoned(world: World) -> None:
    world.add_node("node-a", unschedulable=True)
    waiting_pod(world)


@situation("node not ready", "NodeNotReady", "node-a", "not-ready")
def not_ready(world: World) -> None:
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    world.add_node("node-a", ready=False, taints=[taint])
    waiting_pod(world)


@situation("nodeSelector", "NodeSelectorMismatch", "node-a")
def selector(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world, pod={"nodeSelector": {"zone": "b"}})


@situation("node affinity", "NodeAffinityMismatch", "node-a")
def affinity(world: World) -> None:
    world.add_node("node-a")
    expression = {"key": "zone", "operator": "In", "values": ["b"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    waiting_pod(world, pod={"affinity": {"nodeAffinity": terms}})


@situation("cpu", "InsufficientResources", "node-a", "insufficient cpu")
def too_little_cpu(world: World) -> None:
    world.add_node("node-a", cpu="4")
    world.add_pod("busy", nodeName="node-a", cpu="3")
    waiting_pod(world, pod={"cpu": "2"})


@situation("no controller", "ControllerNotRunning", "mig.dra.dev-controller", leads=False)
def no_leader(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world)


@situation("lease ran out", "ControllerNotRunning", "has run out", leads=False)
def lease_ran_out(world: World) -> None:
    world.lead(seconds_ago=2 * LEASE_SECONDS)
    no_leader(world)


@situation("plugin not serving", "DriverNotReady", "no space left")
def driver_not_ready(world: World) -> None:
    world.add_node("node-a")
    world.say_not_ready("node-a", "the journal cannot be written: no space left on device")
    waiting_pod(world)


@situation("bad configuration", "InvalidConfig", "placement.method", "wanted")
def bad_config(world: World) -> None:
    world.add_node("node-a")
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"method": "spread"},
    }
    opaque = {"driver": "mig.dra.dev", "parameters": parameters}
    waiting_pod(world, request(), config=[{"opaque": opaque}])


@situation("no such class", "NoSuchDeviceClass", "'mig-9g.99gb'")
def no_class(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world, request("r", "mig-9g.99gb"))


@situation("CEL that fails", "InvalidSelector", "'r'", "colour")
def bad_cel(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(
        world, request("r", "mig.dra.dev", "device.attributes['mig.dra.dev'].colour == 'red'")
    )


@situation("gated", "SchedulingGated", "example.com/budget")
def gated(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world, pod={"schedulingGates": [{"name": "example.com/budget"}]})


@situation("template missing", "TemplateMissing", "default/slce")
def template_missing(world: World) -> None:
    world.add_node("node-a")
    entry = {"name": "gpu", "resourceClaimTemplateName": "slce"}
    world.add_pod(WAITS, resourceClaims=[entry])


@situation("too many templates", "TooManyTemplates", "has 64")
def too_many_templates(world: World) -> None:
    world.add_node("node-a")
    entry = {"name": "gpu", "resourceClaimTemplateName": "nvidia.com-gpumem-8000"}
    pod = world.add_pod(WAITS, resourceClaims=[entry])
    world.tell(pod, "TooManyTemplates", "namespace default has 64 such templates")


@situation("quota", "ClaimNotCreated", "exceeded quota: team")
def quota(world: World) -> None:
    world.add_node("node-a")
    world.add_template("slice")
    entry = {"name": "gpu", "resourceClaimTemplateName": "slice"}
    made = world.add_pod(WAITS, resourceClaims=[entry])
    text = "PodResourceClaim gpu: resource claim: exceeded quota: team, requested: count/r=1"
    world.tell(made, "FailedResourceClaimCreation", text, source="resource_claim")


@situation("claim missing", "ClaimMissing", "default/wanted")
def claim_missing(world: World) -> None:
    world.add_node("node-a")
    world.add_pod(WAITS, "wanted")


@situation("mixed drivers", "MixedDrivers", "nic.example.com")
def mixed(world: World) -> None:
    world.add_node("node-a")
    world.add_class("nic.example.com", "device.driver == 'nic.example.com'")
    waiting_pod(world, request("a"), request("b", "nic.example.com"))


@situation("not together", "NoRoomTogether", "node-a")
def not_together(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world, request("a", "mig-4g.20gb"), request("b", "mig-7g.40gb"))


@situation(
    "too many of one",
    "UnsupportedRequest",
    "3 x 3g.20gb can never be served",
    "none has more than 2, as node-a",
)
def too_many_of_one(world: World) -> None:
    world.add_node("node-a")
    waiting_pod(world, request("a", "mig-3g.20gb", count=3))


@situation("the scheduler allocates", "AllocatedByScheduler", "node-a")
def by_scheduler(world: World) -> None:
    world.add_node("node-a", allocator=AllocatorKind.SCHEDULER)
    waiting_pod(world)


@situation("the scheduler allocates a gated pod", "AboutToBeAllocated", "it fits on node-a")
def steered(world: World) -> None:
    world.add_node("node-a", allocator=AllocatorKind.SCHEDULER)
    waiting_pod(world, pod={"schedulingGates": [{"name": f"{DRIVER}/allocation"}]})


@situation("full where the pod may go", "NoRoom", "node-a gpu-0", "(1 more GPU on node-a cannot")
def full_where_selected(world: World) -> None:
    for name in ("node-b", "node-c"):
        world.add_node(name, labels={"zone": "b"})
    world.add_node("node-a", gpu(0), gpu(1), labels={"zone": "a"})
    for number in (0, 1):
        world.hold(f"held-{number}", "node-a", f"gpu-{number}-mig-7g40gb-0-0")
    waiting_pod(world, pod={"nodeSelector": {"zone": "a"}})


@situation("no plugin where the pod may go", "NoMigNode", "node-a: the pod may go there")
def no_plugin_where_selected(world: World) -> None:
    world.add_node("node-b", labels={"zone": "b"})
    world.add_bare_node("node-a", labels={"zone": "a"})
    waiting_pod(world, pod={"nodeSelector": {"zone": "a"}})


@situation("no MigNode", "NoMigNode", "no MigNode exists")
def no_mignode(world: World) -> None:
    waiting_pod(world)


def _said(world: World, reason: str, message: str) -> None:
    """A pod that would fit, and what the controller says of it by its condition."""
    world.add_node("node-a")
    world.lead()
    waiting_pod(world)
    pod = world.api.get(PODS, WAITS, namespace="default")
    condition = {
        "type": f"{DRIVER}/ClaimsAllocated",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    world.set_status(PODS, pod, {"phase": "Pending", "conditions": [condition]})


@situation("taken back", "AllocationTakenBack", "node node-a was taken back", leads=False)
def taken_back(world: World) -> None:
    _said(world, "AllocationTakenBack", "the allocation on node node-a was taken back")


@situation("bound to a full node by another claim", "NoRoom", "node-a", "default/first")
def elsewhere(world: World) -> None:
    world.add_node("node-a")
    world.add_node("node-b")
    _full(world)
    world.hold("other", "node-a", "gpu-0-mig-1g5gb-19-0")
    world.add_claim("wanted")
    world.add_pod(WAITS, "wanted", "other")
