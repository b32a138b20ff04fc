"""Checks of controller, plugins and GPUs, and of claims and slices that were left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import combinations

from cli.doctoring.examination import Check, Evidence, fail, ok, unknown, warn
from cli.drawing import remark
from cli.facts import CONTROLLER, PLUGIN, is_component
from cli.output import counted, named
from cli.site import NodeView, find_hindrance, remedy_of
from dra.claims.claims import find_unseen
from dra.claims.reader import KnownClaim
from dra.claims.reasons import NodeReason, Reason
from dra.claims.remedies import remedy
from dra.common.program import page
from dra.common.resources import ObjectKey, at
from dra.common.runtimes import doubt, refusal, runtime_of
from dra.gpu.inventory import HARMFUL, AllocatorKind, GpuHealth, GpuReason, InstanceState
from dra.gpu.names import DEFAULT_DRIVER

_REASONS = {
    InstanceState.FOREIGN.value: NodeReason.FOREIGN,
    InstanceState.RECLAIMING.value: NodeReason.IN_USE,
    InstanceState.ORPHAN.value: NodeReason.NOT_REMOVED,
    InstanceState.LOST.value: NodeReason.LOST,
}
_GPU_NODE = "nvidia.com/gpu.present"
_DRIVER_NAME = "--driver-name="
_PATIENCE = timedelta(minutes=2)
"""Time that a claim may take to go, or to get its pod, before it is reported."""
_PLUGIN = "look at the plugin's DaemonSet, at its pod there with its log, and at the node"
_REMOVE = (
    "see to what holds it; if its node is gone for good, delete the Node; without a controller: "
    "kubectl mig release <name> -n <namespace>"
)


def controller(evidence: Evidence) -> Iterator[Check]:
    """Check that a controller leads."""
    leader = evidence.facts.leader
    pods = evidence.pods_of(CONTROLLER)
    if leader is None:
        yield unknown("leases may not be read")
    elif leader:
        made = counted(len(pods), "controller pod") if pods else "it runs outside the cluster"
        said = f"{leader} leads; {made}"
        led = evidence.facts.led
        yield warn(f"{said}; {led}", "ask again in some seconds") if led else ok(said)
    elif pods:
        names = named([f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in pods])
        yield fail(
            f"pods of the controller exist ({names}), but none of them leads",
            "look at their logs: they name what they cannot list or write",
        )
    else:
        yield fail(
            "no controller leads: no claim is allocated",
            "see that its Deployment exists and has pods",
        )


def installations(evidence: Evidence) -> Iterator[Check]:
    """Check that no driver has controllers, and no node has plugins, of several installations."""
    found: dict[str, set[str]] = {}
    for pod in evidence.pods_of(CONTROLLER, PLUGIN):
        metadata, spec = pod["metadata"], pod["spec"]
        flags = [arg for each in at(pod, "spec", "containers") for arg in each.get("args") or ()]
        said = (f.removeprefix(_DRIVER_NAME) for f in flags if f.startswith(_DRIVER_NAME))
        driver = next(said, DEFAULT_DRIVER)
        release = at(metadata, "labels", "app.kubernetes.io/instance", default="")
        where = f"node {spec['nodeName']}" if spec.get("nodeName") else ""
        about = f"driver {driver}" if is_component(pod, CONTROLLER) else where
        found.setdefault(about, set()).add(f"{metadata['namespace']}/{release} of driver {driver}")
    for about, installed in found.items():
        if about and len(installed) > 1:
            yield fail(
                f"{about} is of several installations, {named(sorted(installed))}: the programs of "
                "one work, the others wait",
                "keep one: helm uninstall <release> -n <namespace>, or kubeletPlugin.nodeSelector "
                "of both such that no node is of two",
            ).of_node(about.partition(" ")[2])


def plugins(evidence: Evidence) -> Iterator[Check]:
    """Check that every node with a MigNode has a plugin that serves."""
    site = evidence.facts.site
    for name, problem in site.unreadable.items():
        yield fail(
            f"MigNode {name} cannot be read: {problem}",
            "let plugin, controller and this program be of one version",
        )
    known = evidence.facts.nodes
    homeless = [n.name for n in site.nodes if known and n.name not in known]
    if homeless:
        yield fail(
            f"MigNode {named(homeless)} has no Node",
            "delete it, if the node is gone for good: kubectl delete mignode <name>",
        )
    for node in site.nodes:
        serves = node.inventory.ready and not node.silence
        for why in node.faults:
            said = f"node {node.name}: {why}"
            yield (warn(said) if serves else fail(said, _PLUGIN)).of_node(node.name)
    without = [
        name
        for name, body in known.items()
        if at(body, "metadata", "labels", _GPU_NODE) == "true"
        and site.node(name) is None
        and name not in site.unreadable
    ]
    if without:
        yield warn(
            f"node {named(without)} has GPUs (label {_GPU_NODE}) and no MigNode",
            "let the chart's nodeSelector choose it, or leave it to another driver",
        )
    if not site.nodes:
        yield fail("no MigNode exists", "see that the plugin runs on the GPU nodes")
    elif all(n.inventory.ready and not n.silence for n in site.nodes) and not homeless:
        yield ok(f"ready: {counted(len(site.nodes), 'node')} with {counted(len(site.gpus), 'GPU')}")


def runtimes(evidence: Evidence) -> Iterator[Check]:
    """Check that the container runtimes of the nodes with GPUs read CDI specs."""
    found: list[Check] = []
    for name in (node.name for node in evidence.facts.site.nodes):
        runtime = runtime_of(evidence.facts.nodes.get(name, {}))
        problem, _, remedy = refusal(runtime).rpartition("; ")
        if problem:
            found.append(fail(f"node {name}: {problem}", remedy).of_node(name))
        elif said := doubt(runtime):
            found.append(warn(f"node {name}: {said}").of_node(name))
    yield from found or [ok("no container runtime is known to drop CDI devices")]


def modes(evidence: Evidence) -> Iterator[Check]:
    """Check that every GPU is in service, in the right MIG mode and under the right allocator."""
    site = evidence.facts.site
    found = [check for node in site.nodes for check in _mode(node)]
    yield from found
    allocators = Counter(n.inventory.allocator for n in site.nodes)
    if not found and allocators:
        shown = ", ".join(f"{allocators[a]} by {a.value}" for a in AllocatorKind if allocators[a])
        yield ok(f"every GPU is in service; nodes allocated: {shown}")


def _mode(node: NodeView) -> Iterator[Check]:
    publication = node.inventory.publication
    if publication is not None and publication.done is False:
        yield warn(
            f"node {node.name} was to be allocated by kube-scheduler: {publication.message}",
            "turn the feature gate on, or use --allocator=controller",
        )
    for view in node.gpus:
        where, health = f"{node.name} {view.gpu.name}", view.gpu.health or GpuHealth()
        known = remedy_of(view, view.gpu.reason)
        drained = node.inventory.is_drained(view.gpu.name)
        if drained:
            harmed = view.gpu.reason in HARMFUL
            yield warn(f"{where}: {view.blocked}", known if harmed else "").of_gpu(view)
        elif view.blocked and node.inventory.ready:
            names = ", ".join(health.open_in)
            opened = f"; it is open in {names}" if names else ""
            yield fail(
                f"{where} is unavailable ({view.gpu.reason or 'reason unknown'}): "
                f"{view.blocked}{opened}",
                known or page("troubleshooting.md#the-node-offers-nothing"),
            ).of_gpu(view)
        for note in () if drained else health.notes:
            yield warn(f"{where}: {note}").of_gpu(view)
    if node.gpus and all(v.gpu.reason == GpuReason.MIG_OFF for v in node.gpus):
        yield warn(
            f"node {node.name}: MIG is off on all GPUs, they are given out whole",
            "kubectl mig drain, then nvidia-smi -mig 1, if slices are wanted",
        ).of_node(node.name)


def claims(evidence: Evidence) -> Iterator[Check]:
    """Check that no claim is stuck, without use, without effect, or has what another has too."""
    known = sorted(evidence.facts.claims.items())
    found = [check for key, claim in known if (check := _claim(key, claim, evidence))]
    found += [*_unseen(evidence), *_twice(evidence)]
    number = counted(len(known), "claim")
    yield from found or [ok(f"{number}, none stuck, with a slice for nobody, or with another's")]


def _unseen(evidence: Evidence) -> Iterator[Check]:
    """Pods whose containers do not get what their claims have."""
    facts = evidence.facts
    for pod in facts.pods.values():
        known = [facts.claims[key].claim for key in pod.claim_keys if key in facts.claims]
        held = [c for c in known if c.allocation and c.allocation.of_driver(facts.driver)]
        if not pod.deleting and (text := find_unseen(pod.obj, pod.claims, held)):
            yield fail(f"pod {pod}: {text}", remedy(Reason.UNSEEN))


def _twice(evidence: Evidence) -> Iterator[Check]:
    """Claims whose allocations have the same part of a GPU, such as copies of one allocation."""
    for view in evidence.facts.site.gpus:
        alone = [slot for slot in view.slots if slot.claim is not None and slot.share is None]
        for one, other in combinations(alone, 2):
            if one.claim == other.claim or not one.overlaps(other):
                continue
            where = f"{view.inventory.node} {view.gpu.name}"
            yield fail(
                f"claims {one.claim} and {other.claim} are both allocated {one.where} of {where}",
                "delete the claim that the node has not prepared, and its pod; whoever makes "
                "claims with an allocation (a restored backup) must leave status.allocation out",
            )


def _claim(key: ObjectKey, known: KnownClaim, evidence: Evidence) -> Check | None:
    facts, claim, name = evidence.facts, known.claim, "/".join(key)
    if claim.deleting and facts.finalizer in claim.finalizers:
        if _age(known, "deletionTimestamp", evidence.now) <= _PATIENCE:
            return None
        return fail(f"claim {name} {_why_it_stays(known, evidence)}", _REMOVE)
    allocation = claim.allocation
    if allocation is None or not allocation.of_driver(facts.driver):
        return None
    if facts.site.nodes and facts.site.node(allocation.node) is None:
        return fail(
            f"claim {name} is allocated on {allocation.node}, which has no MigNode",
            "look at the plugin's pod there; if the node is gone, delete Node, pod and claim",
        )
    young = _age(known, "creationTimestamp", evidence.now) <= _PATIENCE
    if claim.reserved_for or facts.pods_of(key) or young:
        return None
    devices = named([d.device for d in allocation.of_driver(facts.driver)])
    message = f"claim {name} holds {devices} on {allocation.node}, and no pod refers to it"
    return warn(message, "delete it, or use it")


def instances(evidence: Evidence) -> Iterator[Check]:
    """Check that no slice is foreign, left behind, lost or unhealthy."""
    troubled = False
    for view in evidence.facts.site.gpus:
        where = f"{view.inventory.node} {view.gpu.name}"
        for slot in view.slots:
            if not (text := remark(slot)):
                continue
            troubled = True
            reason = _REASONS.get(slot.state, NodeReason.XID_ERROR)
            by_gpu = view.gpu.reason in HARMFUL or view.gpu.reason == GpuReason.RELEASED
            known = remedy_of(view, view.gpu.reason if by_gpu else reason)
            if slot.state == "foreign":
                text = f"{text}: its room is not given out"
            minor = slot.state in ("foreign", "reclaiming")
            check = (warn if minor else fail)(f"{where}: {text}", known)
            yield check.of_gpu(view, cause=slot.state)
    if not troubled:
        yield ok("no slice is foreign, left behind, lost or unhealthy")


def _why_it_stays(known: KnownClaim, evidence: Evidence) -> str:
    site = evidence.facts.site
    nodes = evidence.facts.nodes.keys() or {n.name for n in site.nodes}
    held = find_hindrance(known.claim, site, nodes, driver=evidence.facts.driver)
    why = held.message if held else "the controller has not taken its finalizer away"
    return f"is being deleted; {why}"


def _age(known: KnownClaim, field: str, now: datetime) -> timedelta:
    stamp = known.obj["metadata"].get(field)
    return now - datetime.fromisoformat(stamp) if stamp else timedelta()
