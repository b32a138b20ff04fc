"""Giving back: allocations that nobody uses, and the causes for which they are taken from a pod.

A claim that is reserved for a pod is deallocated in two steps: the reservation is removed first. A
scheduler that is about to bind the pod after all has to reserve the claim again, and then the claim
keeps its allocation.

A claim that its node will never prepare is given back too, if no pod holds it. A bound pod cannot
be moved, and kubelet goes on trying: an event says that the pod is to be deleted. Its claim keeps
its allocation, so that no other pod is sent there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from controller import times
from controller.cluster.records import PodRecord, Refusal
from controller.serve.binding import may_wait_until
from controller.serve.nudges import find_refusal, may_be_evicted
from controller.serve.world import Act, Look, World, Write
from dra.allocator.admin_access import looks_only
from dra.allocator.fleet import Fleet
from dra.allocator.problem import Problem, Satisfied, examine
from dra.claims.conditions import failed_prepare, not_made
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.pods.nodefit import find_barrier
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

NOT_BOUND = Obstacle(
    Reason.SCHEDULER,
    f"no scheduler bound it within {times.POD_NOT_BOUND:g} s of its allocation, which was given "
    "back and is tried again after a pause: see in the pod's events why, and whether its scheduler "
    "runs",
)

Unused = list[tuple[KnownClaim, str]]
"""Claims with an allocation of ours that no pod uses yet, each with its node, or a reason.

The text is the node in results of ``unused_of``, and the reason to give up in a ``Cause``.
"""


@dataclass(frozen=True, slots=True)
class Cause:
    """Allocations to give back at the monotonic time ``at``, each with the reason."""

    at: float
    claims: Unused = field(default_factory=list)


FindCause = Callable[[World, PodRecord, Unused], Cause | None]


def give_back_unused(
    world: World, record: PodRecord, causes: tuple[FindCause, ...]
) -> Iterator[Act]:
    """Give back the allocations that a pending pod has had unused for too long."""
    unused = unused_of(world, record.pod)
    ends = [end for known, _ in unused if (end := may_wait_until(world, known)) is not None]
    if ends:
        yield Look(min(ends))
        unused = [each for each in unused if may_wait_until(world, each[0]) is None]
    for find in causes:
        cause = find(world, record, unused)
        if cause is None:
            continue
        if world.now() < cause.at:
            yield Look(cause.at)
            continue
        for known, why in cause.claims:
            yield from give_up(world, known, why)
        if world.in_flight.is_about(record.pod.claim_keys):
            return


def unused_of(world: World, pod: Pod) -> Unused:
    """The claims of ``pod`` with an allocation of ours that no pod uses yet, with their nodes."""
    if pod.node:
        return []
    return [(k, node) for k in world.claims_of(pod) if (node := _unused_on(world, k))]


def is_on_node(world: World, node: str, claim_uid: str) -> bool:
    """True if ``node`` still has a slice of a claim that is allocated there, or cannot tell.

    Other nodes are not asked: only its own node can keep a claim from being ended.
    """
    if node not in world.cluster.hosts.facts:
        return False
    instances = world.cluster.fleet.held_claims(node)
    return instances is None or claim_uid in instances


def _unused_on(world: World, known: KnownClaim) -> str:
    """The node of an allocation of ours that no pod uses yet; empty for any other claim."""
    cluster, claim = world.cluster, known.claim
    if claim.allocation is None or not claim.allocation.of_driver(cluster.driver):
        return ""
    if claim.deleting or cluster.finalizer not in claim.finalizers:
        return ""
    if claim.by_others(cluster.driver):
        return ""
    pods = cluster.pod_index.of_claim(known.claim.ref.key)
    waiting = {p.uid for p in pods if p.pending and not p.node}
    used = any(p.live and p.uid not in waiting for p in pods)
    reserved = {consumer.uid for consumer in claim.reserved_for}
    return "" if used or not reserved <= waiting else claim.allocation.node


def give_up(world: World, known: KnownClaim, why: str) -> Iterator[Write]:
    """The next step to give an allocation up; ``why`` is told once it is deallocated."""
    if world.in_flight.is_about([known.claim.ref.key]) or known.claim.allocation is None:
        return
    if known.claim.reserved_for:
        yield world.claim_write(known, world.writer.unreserve)
        return
    message = f"the allocation on node {known.claim.allocation.node} is given up, as {why}"
    obstacle = Obstacle(Reason.TAKEN_BACK, message)
    told = partial(world.reporter.on_claim, known, obstacle, warning=False)
    yield world.claim_write(known, world.writer.deallocate, told)


# -- causes


def lost_node(world: World, record: PodRecord, unused: Unused) -> Cause | None:
    """Cause: a node was deleted or tainted after claims were allocated there.

    kube-scheduler takes such an allocation back only if another node refuses the pod for the claim
    alone.
    """
    lost = [
        (known, f"its pod cannot go there: {why}")
        for known, node in unused
        if (why := _barrier(world, record.pod, node))
        and all(
            _barrier(world, other, node)
            for other in world.cluster.pod_index.of_claim(known.claim.ref.key)
        )
    ]
    if not lost:
        record.lost_since = None
        return None
    if record.lost_since is None:
        record.lost_since = world.now()
    return Cause(record.lost_since + times.NODE_LOST, lost)


def _barrier(world: World, pod: Pod, node: str) -> str:
    """Reason why ``pod`` can never be bound to ``node`` as both are now; empty if it can."""
    facts = world.cluster.hosts.facts.get(node)
    if facts is None:
        return "there is no such Node"
    barrier = find_barrier(pod.needs, facts)
    return "" if barrier is None else barrier.message


def hindered(world: World, record: PodRecord, unused: Unused) -> Cause | None:
    """Cause: an obstacle other than its node keeps a pod from running, or no scheduler binds it.

    A volume claim or another claim of the pod may be deleted after the allocation, and a claim of
    another driver may find no device: then kube-scheduler waits, and the slices are unused. A
    scheduler may also never bind a pod that lacks nothing. Either pod is charged to its node for a
    minute only.
    """
    cluster, pod, now = world.cluster, record.pod, world.now()
    if not unused and not cluster.pod_index.sent_to(pod):
        record.unused_since = None
        return None
    hindrance = _hindrance(world, record) if unused else None
    reason = hindrance.reason if hindrance is not None else None
    if record.unused_since is None or record.hindered[0] is not reason:
        record.hindered = reason, now
    record.unused_since = now if record.unused_since is None else record.unused_since
    kept_until = record.unused_since + times.CHARGED
    if kept_until <= now and not pod.nominated:
        cluster.pod_index.end_charge(pod.key)
    if hindrance is None:
        return Cause(kept_until) if now < kept_until else None
    patience = times.POD_NOT_BOUND if hindrance is NOT_BOUND else times.POD_HINDERED
    if pod.nominated or cluster.hosts.volumes.are_being_made(pod):
        patience = times.POD_BINDING
    end = record.hindered[1] + patience
    if now < end:
        return Cause(min(end, kept_until) if now < kept_until else end)
    claims = _hindered_claims(world, record, unused, hindrance)
    return Cause(end if claims or kept_until <= now else kept_until, claims)


def _hindrance(world: World, record: PodRecord) -> Obstacle | None:
    world.examined(record)
    examined = record.examined
    if examined is None:
        return None
    if examined.hindrance is None and isinstance(examined.found, Satisfied):
        return NOT_BOUND
    return examined.hindrance


def _hindered_claims(
    world: World, record: PodRecord, unused: Unused, hindrance: Obstacle
) -> Unused:
    """Allocations of a hindered pod to give back, with the reasons; its pods then rest.

    A claim that other pending pods share is given back only if they cannot run either, or if no
    scheduler binds them.
    """
    found = []
    for known, _ in unused:
        pods = world.cluster.pod_index.of_claim(known.claim.ref.key)
        others = [p for p in pods if p.pending and p.uid != record.pod.uid]
        if hindrance is NOT_BOUND:
            why = f"no scheduler bound its pod within {times.POD_NOT_BOUND:g} s"
            for other in others:
                _rest(world, world.cluster.pod_index.record(other), hindrance)
        elif all(examine(p, world.cluster, world.reader).hindrance for p in others):
            why = f"its pod cannot run: {hindrance.message}"
        else:
            continue
        _rest(world, record, hindrance)
        found.append((known, why))
    return found


def _rest(world: World, record: PodRecord, why: Obstacle) -> None:
    """Have a pod rest; its pause grows once, even if its claims are given up in several steps."""
    now = world.now()
    if record.rest is None:
        record.rest = Refusal(why, now, now, pause=times.growing(times.POD_HINDERED_AGAIN))
    record.rest.why = why
    if now >= record.rest.until:
        record.rest.again(now)


def rests(world: World, record: PodRecord) -> tuple[float, Obstacle] | None:
    """Time before which nothing is tried for a pod that is still hindered, and the obstacle."""
    rest, examined = record.rest, record.examined
    if rest is None or examined is None or world.now() >= rest.until:
        return None
    obstacle = examined.foreign or (NOT_BOUND if rest.why is NOT_BOUND else None)
    return None if obstacle is None else (rest.until, obstacle)


# -- claims that their node will never prepare


def give_back_failed_prepares(world: World, record: PodRecord) -> Iterator[Act]:
    """Give back the claims of a pod that their node will never prepare."""
    for known in [*world.claims_of(record.pod)]:
        yield from give_back_failed_prepare(world, known)
        if world.in_flight.is_about([known.claim.ref.key]):
            return


def give_back_failed_prepare(world: World, known: KnownClaim) -> Iterator[Look | Write]:
    """Deallocate a claim that its node cannot prepare, and that no pod holds.

    Its Prepare failed for good, or a slice for which kube-scheduler waits cannot be made.

    A claim is held while it is reserved, while a pod of it is bound, and while its node has a slice
    of it. A bound pod is told instead. The node takes out of its MigNode what it cannot make.
    """
    cluster, claim = world.cluster, known.claim
    if claim.allocation is None or claim.deleting or claim.by_others(cluster.driver):
        return
    driver = cluster.driver
    why = (
        failed_prepare(known.obj, driver=driver)
        or not_made(known.obj, driver=driver)
        or find_refusal(world, known)
    )
    if not why or cluster.finalizer not in claim.finalizers:
        return
    node, pods = (
        claim.allocation.node,
        [p for p in cluster.pod_index.of_claim(known.claim.ref.key) if p.live],
    )
    if claim.reserved_for or any(p.node for p in pods):
        for pod in pods:
            is_evicted = world.options.evict_failed and may_be_evicted(world, pod, known)
            if pod.node and pod.pending and not is_evicted:
                _tell_stranded(world, known, pod, node=node, why=why)
        return
    if not pods or not node or is_on_node(world, node, claim.ref.uid):
        return
    if not cluster.claim_index.record(claim.ref).refused_by:  # else its GPU is left out for all
        there = Obstacle(Reason.PREPARE_FAILED, f"a slice could not be made there lately: {why}")
        for pod in pods:
            world.refusals.refuse(cluster.pod_index.template(pod), node, there)
    message = f"node {node} cannot prepare the claim, it is placed elsewhere: {why}"
    told = partial(world.reporter.on_claim, known, Obstacle(Reason.PREPARE_FAILED, message))
    yield world.claim_write(known, world.writer.deallocate, told)


def _tell_stranded(world: World, known: KnownClaim, pod: Pod, *, node: str, why: str) -> None:
    remedy = (
        "delete the pod: its controller makes another, which is placed anew"
        if pod.is_controlled
        else "delete the pod and create it again: it is placed anew"
    )
    message = (
        f"node {node} cannot prepare claim {known.claim.ref}, and a pod that is bound cannot be "
        f"moved; {remedy}. The node says: {why}"
    )
    obstacle = Obstacle(Reason.PREPARE_FAILED, message)
    world.reporter.on_pod(pod, "pod cannot start where it is", obstacle, known)


# -- claims that keep a pod from being served as a whole


def give_back_parts(world: World, pod: Pod, problem: Problem, fleet: Fleet) -> Iterator[Write]:
    """Give back claims of ``pod`` if all its claims then fit together elsewhere.

    A pod may hold some claims on a node that has no room for the others, after a write that failed
    half-way, or after kube-scheduler took back only one of them. ``problem``: the claims that the
    pod still lacks. ``fleet``: the GPUs as the pod may use them.
    """
    pins = [known for known in world.claims_of(pod) if _is_movable(world, known, pod)]
    if looks_only(problem) or not pins or not _fits_whole(world, pod, problem, pins, fleet):
        return
    for known in pins:
        fields = {"claim": str(known.claim.ref), "pod": str(pod)}
        if known.claim.reserved_for:
            write, what = world.writer.unreserve, "no longer reserved for the pod"
        else:
            write, what = world.writer.deallocate, "deallocated"
        message = f"{what}, to serve the pod as a whole on another node"
        yield world.claim_write(known, write, partial(_log.info, message, extra=fields))


def _fits_whole(
    world: World, pod: Pod, problem: Problem, pins: list[KnownClaim], fleet: Fleet
) -> bool:
    """True if all claims of ``pod`` fit on a node once those in ``pins`` are given up."""
    movable = {known.claim.ref.uid for known in pins}
    freed = [world.reader.read(replace(known.claim, allocation=None)) for known in pins]
    extra = tuple(wants for wants in freed if isinstance(wants, ClaimWants))
    others = tuple(
        selector
        for known in world.claims_of(pod)
        if known.claim.ref.uid not in movable and (selector := known.node_selector)
    )
    whole = replace(problem, claims=(*problem.claims, *extra), pins=others)
    return world.allocator.on(fleet.without(movable)).decide(whole) is not None


def _is_movable(world: World, known: KnownClaim, pod: Pod) -> bool:
    """True if we allocated the claim, and no other pod has it reserved or refers to it."""
    claim, cluster = known.claim, world.cluster
    return (
        claim.allocation is not None
        and bool(claim.allocation.of_driver(cluster.driver))
        and cluster.finalizer in claim.finalizers
        and not claim.by_others(cluster.driver)
        and all(consumer.uid == pod.uid for consumer in claim.reserved_for)
        and may_wait_until(world, known) is None
        and not claim.deleting
        and all(
            p.uid == pod.uid or not p.live for p in cluster.pod_index.of_claim(known.claim.ref.key)
        )
    )
