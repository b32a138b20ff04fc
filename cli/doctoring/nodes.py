"""Checks of the two programs, of the GPUs, and of claims and slices that were left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from cli.doctoring.checks import Check, fail, of_gpu, of_node, ok, unknown, warn
from cli.doctoring.evidence import Evidence
from cli.drawing import remark
from cli.output import counted, named
from cli.site import find_hindrance
from dra.claims.reader import KnownClaim
from dra.common.handbook import page
from dra.common.resources import Obj, at
from dra.gpu.inventory import AllocatorKind, Gpu, GpuHealth
from dra.gpu.names import finalizer
from dra.gpu.reasons import GpuReason

_GPU_NODE = "nvidia.com/gpu.present"
_PATIENCE = timedelta(minutes=2)
"""Time that a claim may take to go, or to get its pod, before it is worth a word."""
_REMOVE = (
    "see to what holds it; if its node is gone for good, delete the Node; without a controller: "
    "kubectl mig release <name> -n <namespace>"
)


def controller(evidence: Evidence) -> Iterator[Check]:
    """Somebody leads."""
    leader = evidence.facts.leader
    pods = evidence.controller_pods
    if leader is None:
        yield unknown("controller", "leases may not be read")
    elif leader:
        made = counted(len(pods), "controller pod") if pods else "it runs outside the cluster"
        yield ok("controller", f"{leader} leads; {made}")
    elif pods:
        names = named([f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in pods])
        yield fail(
            "controller",
            f"pods of the controller exist ({names}), but none of them leads",
            "look at their logs: they name what they cannot list or write",
        )
    else:
        yield fail(
            "controller",
            "no controller leads: no claim is allocated",
            "see that its Deployment exists and has pods",
        )


def plugins(evidence: Evidence) -> Iterator[Check]:
    """Every node with a MigNode has a plugin that serves."""
    site = evidence.facts.site
    for name, problem in site.unreadable.items():
        yield fail(
            "plugin",
            f"MigNode {name} cannot be read: {problem}",
            "let plugin, controller and this program be of one version",
        )
    known = {n["metadata"]["name"] for n in evidence.nodes}
    homeless = [n.name for n in site.nodes if known and n.name not in known]
    if homeless:
        yield fail(
            "plugin",
            f"MigNode {named(homeless)} has no Node",
            "delete it, if the node is gone for good: kubectl delete mignode <name>",
        )
    for node in site.nodes:
        if not node.inventory.ready:
            check = fail(
                "plugin",
                f"node {node.name}: {node.inventory.message or 'the plugin does not serve'}",
                "look at the plugin's log on that node",
            )
            yield of_node(check, node.name)
    problems = evidence.facts.plugins
    for node in site.nodes if problems is not None else ():
        problem = (problems or {}).get(node.name, "no pod of the plugin runs there")
        if problem:
            check = fail(
                "plugin",
                f"node {node.name}: {problem}; what its MigNode shows may be old",
                "look at the plugin's DaemonSet, and at the node's taints",
            )
            yield of_node(check, node.name)
    without = [
        n["metadata"]["name"]
        for n in evidence.nodes
        if at(n, "metadata", "labels", _GPU_NODE) == "true"
        and site.node(n["metadata"]["name"]) is None
        and n["metadata"]["name"] not in site.unreadable
    ]
    if without:
        yield warn(
            "plugin",
            f"node {named(without)} has GPUs (label {_GPU_NODE}) and no MigNode",
            "let the chart's nodeSelector choose it, or leave it to another driver",
        )
    if not site.nodes:
        yield fail("plugin", "no MigNode exists", "see that the plugin runs on the GPU nodes")
    elif all(n.inventory.ready for n in site.nodes) and not homeless:
        yield ok(
            "plugin",
            f"ready: {counted(len(site.nodes), 'node')} with {counted(len(site.gpus), 'GPU')}",
        )


def versions(evidence: Evidence) -> Iterator[Check]:
    """All pods of the driver are of one version."""
    tags = Counter(_tags([*evidence.controller_pods, *evidence.plugin_pods]))
    if len(tags) > 1:
        have = ", ".join(f"{n} x {tag}" for tag, n in tags.most_common())
        yield warn(
            "versions",
            f"pods of the driver are of several versions: {have}",
            "wait for the rollout to end, or look why it does not",
        )
    elif tags:
        yield ok("versions", f"all pods of the driver are of version {next(iter(tags))}")


def modes(evidence: Evidence) -> Iterator[Check]:
    """One allocator per node, no other manager of its GPUs, and MIG mode as it should be."""
    found = False
    for node in evidence.facts.site.nodes:
        publication = node.inventory.publication
        if publication is not None and publication.done is False:
            found = True
            yield warn(
                "modes",
                f"node {node.name} was to be allocated by kube-scheduler: {publication.message}",
                "turn the feature gate on, or use --allocator=controller",
            )
        for view in node.gpus:
            if node.inventory.is_drained(view.gpu.name):
                found = True
                check = warn("modes", f"{node.name} {view.gpu.name}: {view.blocked}")
                yield of_gpu(check, node.name, view.gpu.name, view.gpu.uuid)
            elif view.blocked and node.inventory.ready:
                found = True
                where = f"{node.name} {view.gpu.name}"
                check = fail(
                    "modes",
                    f"{where} is unavailable ({view.gpu.reason or 'reason unknown'}): "
                    f"{view.blocked}{_open_in(view.gpu)}",
                    page("troubleshooting.md#the-node-offers-nothing"),
                )
                yield of_gpu(check, node.name, view.gpu.name, view.gpu.uuid)
            for note in view.gpu.health.notes if view.gpu.health else ():
                found = True
                check = warn("modes", f"{node.name} {view.gpu.name}: {note}")
                yield of_gpu(check, node.name, view.gpu.name, view.gpu.uuid)
        if node.gpus and all(v.gpu.reason == GpuReason.MIG_OFF for v in node.gpus):
            found = True
            check = warn(
                "modes",
                f"node {node.name}: MIG is off on all GPUs, they are given out whole",
                "kubectl mig drain, then nvidia-smi -mig 1, if slices are wanted",
            )
            yield of_node(check, node.name)
    allocators = Counter(n.inventory.allocator for n in evidence.facts.site.nodes)
    if not found and allocators:
        shown = ", ".join(f"{allocators[a]} by {a.value}" for a in AllocatorKind if allocators[a])
        yield ok("modes", f"every GPU is in service; nodes allocated: {shown}")
    gpus = [v.gpu for n in evidence.facts.site.nodes for v in n.gpus]
    for words, count in Counter(filter(None, map(_said, gpus))).items():
        yield ok("gpus", f"{count} x {words}")


def claims(evidence: Evidence) -> Iterator[Check]:
    """No claim is held up in going, and none holds a slice for nobody."""
    facts, found = evidence.facts, False
    ours = finalizer(facts.driver)
    for key, known in sorted(facts.claims.items()):
        name = "/".join(key)
        if known.claim.deleting and ours in known.claim.finalizers:
            if _age(known, "deletionTimestamp", evidence.now) > _PATIENCE:
                found = True
                yield fail("claims", f"claim {name} {_why_it_stays(known, evidence)}", _REMOVE)
            continue
        allocation = known.claim.allocation
        if allocation is None or not allocation.of_driver(facts.driver):
            continue
        if facts.site.nodes and facts.site.node(allocation.node) is None:
            found = True
            yield fail(
                "claims",
                f"claim {name} is allocated on {allocation.node}, which has no MigNode",
                "bring the node back, or delete the pod and the claim",
            )
        elif (
            not known.claim.reserved_for
            and not facts.pods_of(key)
            and _age(known, "creationTimestamp", evidence.now) > _PATIENCE
        ):
            found = True
            devices = named([d.device for d in allocation.of_driver(facts.driver)])
            yield warn(
                "claims",
                f"claim {name} holds {devices} on {allocation.node}, and no pod refers to it",
                "delete it, or use it",
            )
    if not found:
        yield ok(
            "claims",
            f"{counted(len(facts.claims), 'claim')}, none stuck or with a slice for nobody",
        )


def instances(evidence: Evidence) -> Iterator[Check]:
    """No slice is left behind, lost or unhealthy."""
    troubled = False
    for view in evidence.facts.site.gpus:
        where = f"{view.inventory.node} {view.gpu.name}"
        for slot in view.slots:
            text = remark(slot)
            if not text:
                continue
            troubled = True
            if slot.state == "foreign":
                check = warn("instances", f"{where}: {text}: its room is not given out")
            elif slot.state == "reclaiming":
                check = warn("instances", f"{where}: {text}", "end the process that uses it")
            else:
                check = fail("instances", f"{where}: {text}", "delete the pod that has it")
            node, gpu = view.inventory.node, view.gpu
            yield of_gpu(check, node, gpu.name, gpu.uuid, cause=slot.state)
    if not troubled:
        yield ok("instances", "no slice is foreign, left behind, lost or unhealthy")


def _why_it_stays(known: KnownClaim, evidence: Evidence) -> str:
    site = evidence.facts.site
    nodes = {n["metadata"]["name"] for n in evidence.nodes} or {n.name for n in site.nodes}
    held = find_hindrance(known.claim, site, nodes, driver=evidence.facts.driver)
    why = held.message if held else "the controller has not taken its finalizer away"
    return f"is being deleted; {why}"


def _age(known: KnownClaim, field: str, now: datetime) -> timedelta:
    stamp = known.obj["metadata"].get(field)
    return now - datetime.fromisoformat(stamp) if stamp else timedelta()


def _open_in(gpu: Gpu) -> str:
    names = gpu.health.open_in if gpu.health else ()
    return f"; it is open in {', '.join(names)}" if names else ""


def _said(gpu: Gpu) -> str:
    """The driver's word on a GPU."""
    health = gpu.health or GpuHealth()
    words = {
        "recovery action": health.recovery,
        "fabric": health.fabric,
        "compute mode": health.compute_mode,
    }
    return ", ".join(f"{what} {word}" for what, word in words.items() if word)


def _tags(pods: Iterable[Obj]) -> Iterator[str]:
    for pod in pods:
        image = str((pod["spec"].get("containers") or [{}])[0].get("image", ""))
        _, colon, tag = image.rpartition(":")
        if colon and "/" not in tag:
            yield tag
