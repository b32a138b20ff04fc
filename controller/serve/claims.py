"""Rules for claims: the label with their node, and their end.

Only the controller mirrors all claims. Each node watches its own claims by a label, and makes their
slices before kubelet asks for them; with binding conditions no pod is bound before that, so that
the label is written at once. Writes that allocate put the label on a claim where they can. Other
claims get it here: in a burst, of kube-scheduler's allocations or ours, when the burst is over.
During a burst the requests for labels would delay the waiting pods more than an early slice gains.
Without the label a node cannot see that kubelet never asked for a claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from controller import times
from controller.cluster.records import ClaimRecord
from controller.serve.giving_back import give_back_failed_prepare, is_on_node
from controller.serve.world import Look, World, Write
from dra.cel.offers import UnansweredError
from dra.claims.conditions import awaits_slices, was_asked_for
from dra.claims.reader import KnownClaim
from dra.common.resources import ObjectKey

_log = logging.getLogger(__name__)

ClaimRule = Callable[[World, KnownClaim], Iterator[Look | Write]]


def serve_claim(world: World, key: ObjectKey) -> bool:
    """Ask the rules for a claim; returns True if a write to it is under way."""
    known = world.cluster.claims.get(key)
    if known is None:
        return False
    if world.in_flight.is_about([key]):
        world.agenda.hold_up(key, is_claim=True)
        return True
    for rule in RULES:
        for act in rule(world, known):
            if isinstance(act, Look):
                world.agenda.add_claim(key, at=act.at)
            else:
                world.begin(act)
        if world.in_flight.is_about([key]):
            return True
    return False


# -- the label of its node


def name_node(world: World, known: KnownClaim) -> Iterator[Look | Write]:
    """Label a claim that a pod waits for with its node, which is one of ours, when it is time."""
    node = _unnamed_node(world, known)
    record = world.cluster.claim_index.records.get(known.claim.ref.uid)
    due: float | None = None
    driver = world.cluster.driver
    is_others = bool(node) and known.claim.by_others(driver)
    if is_others and not _is_of_node(world, known, node):
        node = ""
    if node and awaits_slices(known.obj, driver=driver):
        due = world.now()
    elif node and (is_others or _may_be_asked_for(world, known)):
        record = world.cluster.claim_index.record(known.claim.ref)
        is_first = is_others and record.label_at is None
        if is_first and world.labels.at_once.take(world.now()):
            due = world.now()
        else:
            due = _label_time(world, known, record)
    if due is not None and due > world.now():
        yield Look(due)
        return
    if record is not None:
        record.label_at = None
    if due is not None:
        yield world.claim_write(known, lambda _: world.writer.label(known.obj, node=node))


def _label_time(world: World, known: KnownClaim, record: ClaimRecord) -> float:
    """The monotonic time to label a claim; later if the burst is not over by then."""
    now, pace = world.now(), world.labels
    quiet = pace.last_allocation + times.BURST_OVER
    if _may_be_taken_back(world, known):
        quiet = now + times.BURST_OVER
    if record.label_at is None or record.label_at <= now < quiet:
        record.label_at = pace.last = max(now, quiet, pace.last + times.LABEL_LATER)
    return record.label_at


def _may_be_taken_back(world: World, known: KnownClaim) -> bool:
    """True if a pod of the claim still lacks another claim.

    kube-scheduler may then be taking this claim's allocation back. A label written at that moment
    makes it fail, and kube-scheduler leaves the pod alone for long.
    """
    pods = world.cluster.pod_index.of_claim(known.claim.ref.key)
    return any(other.claim.allocation is None for pod in pods for other in world.claims_of(pod))


def _may_be_asked_for(world: World, known: KnownClaim) -> bool:
    """True if a pod waits and nothing shows that kubelet has asked for the claim."""
    waits = any(pod.pending for pod in world.cluster.pod_index.of_claim(known.claim.ref.key))
    return waits and not was_asked_for(known.obj, driver=world.cluster.driver)


def _unnamed_node(world: World, known: KnownClaim) -> str:
    """The node of a claim that is reserved for a pod, if its label is missing; else empty."""
    claim = known.claim
    if claim.allocation is None or claim.deleting or not claim.reserved_for:
        return ""
    node = claim.allocation.node
    if not claim.allocation.of_driver(world.cluster.driver):
        return ""
    return "" if world.writer.is_labelled(known.obj, node=node) else node


def _is_of_node(world: World, known: KnownClaim, node: str) -> bool:
    inventory, allocation = world.cluster.inventory(node), known.claim.allocation
    if inventory is None or allocation is None:
        return False
    return any(d.pool == inventory.pool for d in allocation.of_driver(world.cluster.driver))


# -- its end


def end_claim(world: World, known: KnownClaim) -> Iterator[Look | Write]:
    """Take the next step for a claim that may have ended: deallocate it, or remove our finalizer.

    A claim without our finalizer is left alone, and a reserved claim counts as used. With
    ``--finalizer-at-creation`` the finalizer stays until the claim is deleted; without, from the
    decision about the claim until no pod uses it. It is removed from claims of other drivers.
    """
    claim, record = known.claim, world.cluster.claim_index.records.get(known.claim.ref.uid)
    since = record.unused_since if record is not None else None
    if record is not None:
        record.unused_since = None
    if world.cluster.finalizer not in claim.finalizers:
        return
    try:
        is_over = _is_over(world, known)
    except UnansweredError as error:
        if world.evaluations is not None:
            world.evaluations.ask_for_all(error.question)
        yield Look(world.now() + times.CLASS_UNKNOWN)
        return
    if not is_over:
        return
    fields = {"claim": str(claim.ref)}
    if claim.allocation is None or claim.deleting or claim.by_others(world.cluster.driver):
        told = partial(_log.info, "released", extra=fields)
        yield world.claim_write(known, world.writer.remove_finalizer, told)
        return
    if claim.owner_pod_uid:
        # The garbage collector deletes the claims of a pod that has ended, usually at once.
        since = world.now() if since is None else since
        if world.now() < since + times.OWNED_CLAIM_UNUSED:
            world.cluster.claim_index.record(claim.ref).unused_since = since
            yield Look(since + times.OWNED_CLAIM_UNUSED)
            return
    told = partial(_log.info, "deallocated: no pod uses it", extra=fields)
    yield world.claim_write(known, world.writer.deallocate, told)


def _is_over(world: World, known: KnownClaim) -> bool:
    """True if a claim that nobody uses still has our finalizer or our allocation.

    Raises:
        UnansweredError: it is not known yet whether its class is for this driver.
    """
    cluster, claim = world.cluster, known.claim
    if claim.allocation is not None:
        is_ours = not claim.by_others(cluster.driver)
    else:
        is_ours = world.reader.concerns(claim)
    if not is_ours:
        return True
    if claim.reserved_for:
        return False
    if not claim.deleting:
        # An allocation that still counts may be a write without an answer. To remove the finalizer
        # settles that.
        at_creation = world.options.finalizer_at_creation and not cluster.fleet.counts(
            claim.ref.uid
        )
        if at_creation and claim.allocation is None:
            return False
        if any(pod.live for pod in cluster.pod_index.of_claim(known.claim.ref.key)):
            return False
    if claim.allocation is not None and is_on_node(world, claim.allocation.node, claim.ref.uid):
        _log.debug("the node still has a slice of an ended claim", extra={"claim": str(claim.ref)})
        return False
    return True


RULES: tuple[ClaimRule, ...] = (give_back_failed_prepare, name_node, end_claim)
