"""Allocated claims: where their devices are, and why a pod that has them does not run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cli.explaining.findings import Finding, Progress, Why, finding
from cli.facts import ClusterFacts, Told
from cli.site import Slot
from dra.allocator.explain.answers import AnswerReason
from dra.claims.claims import find_unseen
from dra.claims.conditions import READY
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Reason
from dra.common.resources import MIG_NODES, at
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.pods.nodefit import NOT_READY, MisfitReason
from dra.pods.pods import Pod
from dra.pods.rules import find_obstacle

_SCHEDULER = "default-scheduler"


@dataclass(frozen=True, slots=True)
class Seat:
    """A device that a claim has, and what became of it on its node.

    ``slot``: its place on a GPU, None if the MigNode does not show it. ``ready`` and ``message``:
    reason and message of its condition, empty while the node has not set one.
    """

    claim: ClaimRef
    node: str
    device: str
    slot: Slot | None
    ready: str = ""
    message: str = ""

    @property
    def gpu(self) -> str:
        """``gpu-<minor>`` of the device."""
        return "-".join(self.device.split("-")[:2])


def seats_of(known: KnownClaim, facts: ClusterFacts) -> tuple[Seat, ...]:
    """The devices of ours that a claim has."""
    allocation = known.claim.allocation
    if allocation is None:
        return ()
    found = []
    for allocated in allocation.of_driver(facts.driver):
        ready, message = _condition(known, allocated.pool, allocated.device, facts.driver)
        slot = _slot(known, allocation.node, allocated.device, facts)
        found.append(Seat(known.claim.ref, allocation.node, allocated.device, slot, ready, message))
    return tuple(found)


def find_seated(
    pod: Pod,
    seats: Sequence[Seat],
    facts: ClusterFacts,
    told: Sequence[Told],
    *,
    elsewhere: Finding | None = None,
) -> tuple[Progress, tuple[Finding, ...]]:
    """Progress of a pod whose claims are all allocated, and what keeps it from running.

    ``elsewhere``: why it does not fit on the node of its claims, if it does not.
    """
    troubles = tuple(
        finding(
            s.ready,
            f"claim {s.claim}, {s.device} on {s.node}: {s.message or s.ready}",
            facts.site.gpu(s.node, s.gpu),
        )
        for s in seats
        if s.ready not in ("", "Prepared")
    )
    held = [facts.claims[s.claim.key].claim for s in seats if s.claim.key in facts.claims]
    text = find_unseen(pod.obj, pod.claims, dict.fromkeys(held))
    unseen = (finding(Reason.UNSEEN, text),) if text else ()
    if not pod.node and not pod.deleting:
        return Progress.ALLOCATED, (*troubles, elsewhere or _unbound(pod, facts, told), *unseen)
    node = facts.hosts.facts.get(pod.node)
    if (
        pod.node
        and facts.nodes
        and (node is None or any(t["key"] in NOT_READY for t in node.taints))
    ):
        reason = MisfitReason.NOT_READY if node is not None else MisfitReason.NO_NODE
        state = "is not ready" if node is not None else "does not exist any more"
        troubles = (*troubles, finding(reason, f"node {pod.node} {state}"))
    elif (
        pod.node
        and str(MIG_NODES) not in facts.unread
        and (silence := facts.site.silence(pod.node))
    ):
        troubles = (*troubles, finding(Why.PLUGIN_GONE, f"node {pod.node}: {silence}"))
    if pod.deleting:
        return Progress.ENDING, (_ending(pod, told), *troubles)
    if pod.phase == "Running":
        return Progress.RUNNING, (*troubles, *unseen)
    return Progress.STARTING, (*(troubles or (_starting(pod, facts, told),)), *unseen)


def _ending(pod: Pod, told: Sequence[Told]) -> Finding:
    """Things that a pod which is being deleted waits for."""
    metadata = pod.obj["metadata"]
    waits = f"kubelet on {pod.node or 'no node'} to end its containers and give its devices back"
    if finalizers := at(metadata, "finalizers"):
        waits = f"its finalizers {', '.join(finalizers)}"
    said = next((t for t in told if t.source == "kubelet"), None)
    event = f"; an event of kubelet says: {said.reason}: {said.message}" if said else ""
    since = f"it is being deleted, with grace until {metadata['deletionTimestamp']}"
    return finding(Why.ENDING, f"{since}; it waits for {waits}{event}")


def _unbound(pod: Pod, facts: ClusterFacts, told: Sequence[Told]) -> Finding:
    ours = facts.finalizer
    others = [g for g in pod.gates if g != ours]
    if others:
        return finding(Why.GATED, f"scheduling gates are set: {', '.join(others)}")
    if pod.gates and facts.leader == "":
        return finding(Why.NOT_LEADING, f"no controller leads, so gate {ours} stays")
    if pod.gates:
        text = f"the controller is about to lift gate {ours}"
        return finding(Why.SOON, f"{text}; {facts.led}" if facts.led else text)
    missing = find_obstacle(pod, facts.hosts.volumes)
    if missing is not None:
        return finding(missing.reason, missing.message)
    said = next((t for t in told if t.source.startswith(_SCHEDULER)), None)
    why = _scheduled(pod) or (f"an event says: {said.message}" if said else "")
    message = f"its claims are allocated, but it is not bound yet: {why}"
    return finding(Why.NOT_SCHEDULED, message.rstrip(": "))


def _starting(pod: Pod, facts: ClusterFacts, told: Sequence[Told]) -> Finding:
    node = facts.site.node(pod.node)
    if node is not None and not node.inventory.ready:
        text = node.inventory.message or "the driver is not ready"
        return finding(AnswerReason.NOT_READY, f"node {pod.node}: {text}")
    said = next((t for t in told if "DynamicResources" in t.reason or t.source == "kubelet"), None)
    message = "no event says that anything failed"
    if said is not None:
        message = f"an event says: {said.reason}: {said.message}"
    return finding(Why.PREPARING, f"kubelet on {pod.node} starts it; {message}")


def _scheduled(pod: Pod) -> str:
    for condition in at(pod.obj, "status", "conditions"):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


def _condition(known: KnownClaim, pool: str, device: str, driver: str) -> tuple[str, str]:
    """Reason and message of the Ready condition; empty while the node has not said anything."""
    for entry in at(known.obj, "status", "devices"):
        if (entry["driver"], entry["pool"], entry["device"]) != (driver, pool, device):
            continue
        for condition in at(entry, "conditions"):
            if condition["type"] == READY:
                return str(condition.get("reason") or ""), str(condition.get("message") or "")
    return "", ""


def _slot(known: KnownClaim, node: str, device: str, facts: ClusterFacts) -> Slot | None:
    try:
        parsed = parse_device(device)
    except DeviceNameError:
        return None
    gpu, wanted = str(parsed), None
    if not isinstance(parsed, GpuDevice):
        gpu, wanted = parsed.gpu, parsed.start
    for slot in facts.site.slots(node, gpu):
        start = slot.placement.start if slot.placement else None
        if slot.claim and slot.claim.uid == known.claim.ref.uid and start == wanted:
            return slot
    return None
