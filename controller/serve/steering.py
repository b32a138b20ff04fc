"""Steering: pods whose devices kube-scheduler allocates, on a node that the controller chooses.

kube-scheduler scores no devices: of a node it takes the first that is free, in the published order
(``dra.resourceslices.partitions``). So it is known what it would take next on each node. A pod
waits behind our scheduling gate for the node whose next device costs the cluster least. That node
is nominated for the pod (``status.nominatedNodeName``), then the gate is lifted. kube-scheduler
tries the nominated node first, by all its rules, and every other node if the pod does not fit there
(``evaluateNominatedNode`` in its schedule_one.go, 1.36). It writes the claims; we write none.

A gate cannot be put back, and a search of all nodes costs kube-scheduler a second at 100 nodes. So
few pods are on their way at a time, and one to a node: kube-scheduler serves two in an order that
nobody knows, and the second would find another device than was foreseen. What was foreseen for a
pod counts as its own until its claims are allocated, or it was refused, or is gone.

A pod that fits nowhere is refused: kube-scheduler takes the nomination back and tries the pod again
by itself, as one that never had the gate. So is one whose claim is deleted, which kube-scheduler
leaves alone. While too many pods of a namespace were refused and wait, no other pod of it is sent.
A condition of the pod, which no tenant can write, tells the next leader that it was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from controller.cluster.records import PodRecord, Steered
from controller.serve.allocations import Done, is_gated
from controller.serve.world import Act, Wait, World, Write
from controller.write.in_flight import WriteAnswer
from dra.allocator.problem import Decision
from dra.claims.conditions import is_refused, sent_to
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj
from dra.kube.errors import ConflictError, UnavailableError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

MOST = 64
"""Upper bound on pods that were sent and have no devices yet; a larger gang is sent by itself."""

MOST_REFUSED = 8
"""Refused pods that wait, after which none is sent of a namespace that has one of them.

No more count in ``MOST``, so that pods that never fit cannot keep others from being sent.
"""

MOST_REFUSED_OF_ONE = 4
"""Refused pods of one namespace that wait, after which no other of it is sent.

kube-scheduler tries each again every ten seconds, on all nodes: 0.2 s at 30 nodes, 2 s at 100.
"""

ON_ITS_WAY = "another pod is on its way there"

_MANY_REFUSED = Obstacle(
    Reason.SCHEDULER,
    "kube-scheduler has refused other pods of the namespace that were sent to it, and they wait "
    "there: see why in their events (kubectl get events --field-selector reason=FailedScheduling), "
    "and delete those that will never fit",
)

_TURN = "turn"
"""With the namespace, group of the pods that wait until fewer are on their way."""


def is_steered(world: World, decision: Decision) -> bool:
    """True if kube-scheduler is to allocate what ``decision`` says."""
    return decision.node in world.cluster.fleet.schedulers


def busy(world: World) -> dict[str, str]:
    """The nodes to which a pod is on its way, with the reason to leave them out."""
    sent = (record.steered for record in world.steered.values())
    return {each.node: ON_ITS_WAY for each in sent if each is not None and not each.is_refused}


# -- rules


def await_scheduler(world: World, record: PodRecord) -> Iterator[Act]:
    """Have a pod wait that is on its way; send it again if nobody knows that it was sent."""
    steered = record.steered
    if steered is None or (steered.is_refused and steered.is_sent):
        return
    if not steered.is_sent:
        yield _write(world, record.pod, steered, partial(world.pod_answered, record.pod.key))
    yield Wait(None)


def leave_to_scheduler(world: World, record: PodRecord) -> Iterator[Act]:
    """Leave a pod without the gate to kube-scheduler where that allocates all nodes."""
    is_theirs = world.cluster.fleet.is_all_schedulers and not is_gated(world, record.pod)
    if is_theirs and world.examined(record) is not None:
        world.line.leaves(record.pod.uid)
        yield Wait(None)


def await_turn(world: World, record: PodRecord) -> Iterator[Act]:
    """Have a pod wait before a place is looked for, where kube-scheduler allocates all nodes."""
    if world.steered and world.cluster.fleet.is_all_schedulers and world.examined(record):
        turn = wait_for_turn(world, [record.pod])
        if turn is not None:
            yield turn


def wait_for_turn(world: World, pods: Sequence[Pod]) -> Wait | None:
    """Have gated pods of one namespace wait while others are on their way; None if they may go.

    A namespace begins with a few, or with one while others that begin have many, and has one more
    on the way for each that was placed, up to twice as many as could still be sent: so there is
    always room for one more namespace.
    """
    namespace, sent = pods[0].key[0], [(r.pod.key[0], r.steered) for r in world.steered.values()]
    refused = [name for name, steered in sent if steered is not None and steered.is_refused]
    own = refused.count(namespace)
    if own >= MOST_REFUSED_OF_ONE or (own and len(refused) >= MOST_REFUSED):
        return Wait(_MANY_REFUSED, (), (_TURN, namespace))
    counted = len(sent) - max(0, len(refused) - MOST_REFUSED)
    most = min(MOST, len(world.cluster.fleet.schedulers) + len(refused))
    if len(pods) > 1:
        return Wait(None, (), (_TURN, namespace)) if 0 < counted > MOST - len(pods) else None
    has = sum(name == namespace for name, _ in sent)
    earned = world.trusted.find(namespace) or 0
    untried = sum(not world.trusted.find(name) for name, _ in sent) if not earned else 0
    first = MOST_REFUSED_OF_ONE if untried < MOST_REFUSED else 1
    if counted and has >= min(first + earned, own + 2 * (most - counted)):
        return Wait(None, (), (_TURN, namespace))
    return None


def steer(
    world: World,
    pod: Pod,
    decision: Decision,
    claims: Sequence[ClaimWants],
    done: Done | None = None,
) -> Write:
    """The write that sends ``pod`` to kube-scheduler, for the node of ``decision``."""
    record = world.cluster.pod_index.record(pod)
    given = decision.allocations(claims, world.cluster.driver)
    profiles = tuple(p.profile for p in decision.picks if p.share is None)
    record.steered = Steered(decision.node, tuple(given), profiles)
    world.steered[pod.uid] = record
    write = _write(world, pod, record.steered, done or partial(world.pod_answered, pod.key))
    return replace(write, counts=tuple(given.items()))


def send_without_room(world: World, pod: Pod) -> Write | None:
    """The write that sends a gated pod for which no node has room; None if that is of no use.

    An autoscaler makes nodes for pods that kube-scheduler has refused, and knows no others.
    """
    is_wanted = world.options.autoscaler and bool(world.cluster.fleet.schedulers)
    if not is_wanted or not is_gated(world, pod) or wait_for_turn(world, [pod]) is not None:
        return None
    record = world.cluster.pod_index.record(pod)
    record.steered = Steered("", is_refused=True)
    world.steered[pod.uid] = record
    return _write(world, pod, record.steered, partial(world.pod_answered, pod.key))


def _write(world: World, pod: Pod, steered: Steered, done: Done) -> Write:
    def job() -> Iterator[Obj]:
        yield from world.requests.send_to(pod, steered.node, gate=world.cluster.finalizer)

    def answered(answer: WriteAnswer) -> None:
        if answer.error is None:
            _note_sent(world, pod, steered)
        elif isinstance(answer.error, ConflictError) and not steered.is_repeated:
            steered.is_repeated = True
        elif not isinstance(answer.error, UnavailableError):
            end(world, world.cluster.pod_index.record(pod))
        if (known := world.cluster.pods.get(pod.key)) is not None and known.uid == pod.uid:
            note_pod(world, known)
        done(answer.error)

    return Write(pod.claim_keys, job, answered)


def _note_sent(world: World, pod: Pod, steered: Steered) -> None:
    steered.is_sent = True
    world.cluster.pod_index.record(pod).gate_lifted = True
    fields = {"pod": str(pod), "node": steered.node, "profiles": ", ".join(steered.profiles)}
    _log.info("sent to kube-scheduler", extra=fields)
    if not steered.node:
        world.line.leaves(pod.uid)
        return
    world.labels.last_allocation = world.now()
    world.line.served(pod)
    for profile in filter(None, steered.profiles):
        world.cluster.fleet.demand.observe(profile)


# -- what becomes of pods that were sent


def note_pod(world: World, pod: Pod) -> None:
    """Take a change of a pod or of its claims: it may have been sent, served or refused."""
    index = world.cluster.pod_index
    record, node = index.records.get(pod.uid), sent_to(pod.obj, driver=world.cluster.driver)
    steered = record.steered if record is not None else None
    if (steered is None and node is None) or world.cluster.finalizer in pod.gates:
        return
    if pod.node or not pod.pending or _has_all(world, pod):
        if record is not None and steered is not None:
            _served(world, record, steered)
        return
    if record is None or steered is None:  # sent by a former leader, or its claims were given back
        record, steered = index.record(pod), Steered(node or "")
        record.steered, world.steered[pod.uid] = steered, record
    steered.is_sent = True
    is_final = is_refused(pod.obj) and not pod.needs.preempts  # then the nomination may stay
    is_left = is_final or not pod.nominated or _lacks_a_claim(world, pod)
    if is_left and not steered.is_refused:
        _refused(world, record, steered)
    elif not is_final and pod.nominated not in ("", steered.node):
        _moved(world, record, steered)


def _moved(world: World, record: PodRecord, steered: Steered) -> None:
    """Note that kube-scheduler puts a pod on another node, or makes room for it there."""
    _count_missed(world, record, steered)
    _free(world, steered)
    steered.node, steered.is_moved, steered.is_refused = record.pod.nominated, True, False


def _count_missed(world: World, record: PodRecord, steered: Steered) -> None:
    if steered.node and not (steered.is_moved or steered.is_refused):
        world.reporter.metrics.steered("elsewhere")
        if world.cluster.gangs.find(record.pod.key) is None:  # gangs are placed as a whole
            world.missed.add(steered.node)


def _served(world: World, record: PodRecord, steered: Steered) -> None:
    """Note that a pod has its claims, or has ended; a bound one may get them a little later."""
    pod = record.pod
    if not _has_all(world, pod) and pod.pending:
        return
    found = (known.claim.allocation for known in world.claims_of(pod))
    nodes = {allocation.node for allocation in found if allocation is not None}
    if nodes:
        world.trusted.put(pod.key[0], min(MOST, 1 + (world.trusted.find(pod.key[0]) or 0)))
    if nodes and steered.node not in nodes:
        _count_missed(world, record, steered)
    elif nodes and not (steered.is_moved or steered.is_refused):
        world.reporter.metrics.steered("nominated")
        world.missed.discard(steered.node)
    end(world, record)


def end(world: World, record: PodRecord) -> None:
    """Stop counting a pod that was sent: it is served or gone."""
    steered, record.steered = record.steered, None
    if steered is None:
        return
    del world.steered[record.pod.uid]
    _free(world, steered)


def _refused(world: World, record: PodRecord, steered: Steered) -> None:
    """Note that kube-scheduler found no node for a pod, which is its own from now on."""
    _log.info("refused by kube-scheduler", extra={"pod": str(record.pod), "node": steered.node})
    steered.is_refused = True
    world.trusted.put(record.pod.key[0], 0)
    if steered.node and not _lacks_a_claim(world, record.pod):
        world.reporter.metrics.steered("refused")
        world.refusals.refuse(world.cluster.pod_index.template(record.pod), steered.node)
    _free(world, steered)


def _free(world: World, steered: Steered) -> None:
    """Count what was foreseen for a pod no longer; other pods may be sent to its node."""
    claims, steered.claims = steered.claims, ()
    for claim in claims:
        world.cluster.end_write(claim)
    world.cluster.make_room(steered.node)
    world.agenda.room_made()  # for those that wait for their turn


def _lacks_a_claim(world: World, pod: Pod) -> bool:
    """True if a claim of a pod is gone or being deleted: kube-scheduler does not try it then.

    Its nomination stays (PreEnqueue in kube-scheduler's dynamicresources.go, 1.36).
    """
    present = [known for known in world.claims_of(pod) if not known.claim.deleting]
    return len(present) < len(pod.claim_keys)


def _has_all(world: World, pod: Pod) -> bool:
    """True if each claim of a pod is allocated."""
    found = [known.claim.allocation is not None for known in world.claims_of(pod)]
    return len(found) == len(pod.claim_keys) and all(found)
