"""Nudges: writes that have kubelet, kube-scheduler or a pod's controller look again.

By itself, kubelet asks for a claim again 60 to 90 s after a failed Prepare. The controller has
kubelet ask sooner, once for each failure: when the slice that was in the way is gone, when the
failure passes by itself, when a plugin that was killed during the call is back, and a few times
while the claim's status does not tell that the call came. A mark on the pod names the occasion, so
that another leader does not repeat it.

The call never comes if kubelet could not read the claim. kubelet reads claims before it calls, and
the API server allows that once its node authorizer has heard that the pod is bound
(plugin/pkg/auth/authorizer/node/graph_populator.go, 1.36). kubelet hears of it at the same time. If
the API server is busy, a third of the pods of a burst that mount no volumes lose that race, unless
kubelets may read claims anyway (``kubeletClaims`` of the chart).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any

from api.config import PreparationConfig
from api.errors import InvalidObjectError
from controller import times
from controller.cluster.records import Marks, Nomination, PodRecord
from controller.serve.world import Act, Evicted, Look, World, Write
from controller.write.in_flight import WriteAnswer, one
from dra.claims.conditions import PREPARE_FAILED, PREPARE_FAILING, failed_prepare, was_asked_for
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.claims.sharing import settings_of
from dra.common.resources import Obj, at
from dra.gpu.holdings import find_blocker
from dra.gpu.inventory import FailedClaim, Inventory
from dra.gpu.names import on_failure, prepare_retry
from dra.kube.errors import ConflictError, ForbiddenError
from dra.pods.pods import Pod
from dra.pods.rules import find_victims

_log = logging.getLogger(__name__)

_MOST = 32
"""Number of occasions that are remembered for one pod."""

_SECOND = len("2026-01-01T00:00:00")
"""Length of a time up to its whole seconds, which is all that an allocation's time has."""

_FAILED = frozenset({PREPARE_FAILED, PREPARE_FAILING})
_EVICT = "evict"


def preparation(config: Iterable[Mapping[str, Any]], *, driver: str) -> PreparationConfig:
    """The settings for the preparation; of several entries for ``driver`` the last one counts.

    ``config``: ``devices.config`` of an allocation, in which the entries of classes come first.
    Entries that cannot be read are left out.
    """
    fields: dict[str, Any] = {}
    for setting in settings_of(config, driver):
        if not isinstance(setting.said, InvalidObjectError):
            fields |= setting.said.preparation
    return PreparationConfig(**fields)


# -- kubelet


def have_kubelet_ask(world: World, record: PodRecord) -> Iterator[Act]:
    """Mark a bound pod if there is an occasion for kubelet to ask for its claims again."""
    pod = record.pod
    if not (pod.node and pod.pending):
        record.marks = None
        return
    found, unasked = _occasions(world, pod)
    if not found and not unasked:
        return
    marks = record.marks = record.marks or _read_marks(world, pod)
    for wait in unasked:
        if world.now() < marks.since + wait:
            yield Look(marks.since + wait)
            break
        found |= {f"+{wait:g} s"}
    new = sorted(o for o in found.difference(marks.occasions) if o > marks.read)
    if not new:
        return
    if world.now() >= marks.pause.until:
        marks.pause.fail(world.now())
        before, marks.occasions = marks.occasions, (*marks.occasions, *new)[-_MOST:]
        yield _mark(world, pod, marks, new[-1], before)
    yield Look(marks.pause.until)


def _read_marks(world: World, pod: Pod) -> Marks:
    """Marks of a pod by its annotation, which the leader before may just have written."""
    found = at(pod.obj, "metadata", "annotations", default={})
    mark = str(found.get(prepare_retry(world.cluster.driver), ""))
    marks = Marks(mark, world.now())
    if mark:
        marks.pause.until = world.now() + times.PREPARE_AGAIN[0]
    return marks


def _mark(world: World, pod: Pod, marks: Marks, occasion: str, before: tuple[str, ...]) -> Write:
    def done(answer: WriteAnswer) -> None:
        fields = {"pod": str(pod), "node": pod.node}
        if answer.error is None:
            _log.info("kubelet is to prepare the claims again", extra=fields)
            return
        marks.occasions = before  # tried again when it is looked at again
        fields["error"] = str(answer.error)
        _log.info("kubelet could not be told to prepare the claims again", extra=fields)

    return Write((), one(world.requests.request_prepare, pod, occasion), done)


def _occasions(world: World, pod: Pod) -> tuple[frozenset[str], tuple[float, ...]]:
    """Occasions, as times, for another Prepare; none while another slice is in the way.

    With the seconds after which kubelet should have asked for the pod's claims, if it may not have.
    What a status says of a claim of several pods may be of another one.
    """
    inventory, driver = world.cluster.inventory(pod.node), world.cluster.driver
    if inventory is None:
        return frozenset(), ()
    failed = {f.claim.uid: f for f in inventory.failed_claims}
    found: list[str] = []
    unasked: tuple[float, ...] = ()
    for known in world.claims_of(pod):
        allocation, ref = known.claim.allocation, known.claim.ref
        if allocation is None or allocation.node != pod.node:
            continue
        devices = [d.device for d in allocation.of_driver(driver)]
        failure = failed.get(ref.uid)
        if not devices or (failure is None and not pod.taken):  # kubelet has not asked for it
            continue
        if failure is None:
            since = at(known.obj, "status", "allocation", "allocationTimestamp", default="")
            if since[:_SECOND] <= inventory.resumed[:_SECOND]:
                found.append(inventory.resumed)
            asked = was_asked_for(known.obj, driver=driver)
            if not asked or len(known.claim.reserved_for) > 1:
                unasked = times.PREPARE_UNASKED
        elif _is_blocked(failure, devices, inventory):
            world.cluster.claim_index.record(ref).blocked_at = failure.time
            return frozenset(), ()
        elif failure.passing or world.cluster.claim_index.record(ref).blocked_at == failure.time:
            found.append(failure.time)
    return frozenset(found), unasked


def find_refusal(world: World, known: KnownClaim) -> str:
    """Refusal of a claim's slice by NVML that does not pass, in words; empty if there is none.

    While something is in the way, that is the cause, and kubelet asks again once it is gone.
    """
    claim, driver = known.claim, world.cluster.driver
    inventory = world.cluster.inventory(claim.allocation.node) if claim.allocation else None
    if claim.allocation is None or inventory is None:
        return ""
    failed = next((f for f in inventory.failed_claims if f.claim.uid == claim.ref.uid), None)
    devices = [d.device for d in claim.allocation.of_driver(driver)]
    if failed is None or failed.passing or not failed.gpu:
        return ""
    was_blocked = world.cluster.claim_index.record(claim.ref).blocked_at == failed.time
    if was_blocked or _is_blocked(failed, devices, inventory):
        return ""
    return f"NVML refused it on GPU {failed.gpu}; events of the claim and the pod have its words"


def _is_blocked(failed: FailedClaim, devices: list[str], inventory: Inventory) -> bool:
    return any(find_blocker(device, failed.claim.uid, inventory) for device in devices)


# -- kube-controller-manager


def keep_claim_names(world: World, record: PodRecord) -> Iterator[Act]:
    """Write the names of a pod's claims into its status again if one is missing there.

    For a pod with several templates, kube-controller-manager 1.34 to 1.36 may go on for ever
    writing the name of one claim and removing that of another (kubernetes#138407). kube-scheduler
    places no pod with an unnamed claim. A name that another field manager has written as well is
    not removed. kube-controller-manager has a second to name new claims before we do.
    """
    pod = record.pod
    entries = at(pod.obj, "spec", "resourceClaims")
    made = [e["name"] for e in entries if e.get("resourceClaimTemplateName")]
    if pod.node or len(made) < 2:  # noqa: PLR2004 - of one alone none is lost
        return
    names = {name: claim for name in made if (claim := pod.claims.get(name))}
    told = {each["name"] for each in at(pod.obj, "status", "resourceClaimStatuses")}
    if len(names) < len(made) or told >= names.keys():
        return
    if record.naming is None:
        record.naming = times.growing(times.CLAIMS_NAMED_AGAIN)
        record.naming.fail(world.now())
    elif world.now() >= record.naming.until:
        record.naming.fail(world.now())
        yield _naming(world, pod, names)
    yield Look(record.naming.until)


def _naming(world: World, pod: Pod, names: Mapping[str, str]) -> Write:
    def done(answer: WriteAnswer) -> None:
        error = str(answer.error) if answer.error is not None else ""
        _log.info("claims of the pod named again", extra={"pod": str(pod), "error": error})

    return Write((), one(world.requests.name_claims, pod, names), done)


# -- the pod's controller


def evict(world: World, record: PodRecord) -> Iterator[Act]:
    """Evict a pod that is bound to a node where its slice cannot be made.

    By default that is a pod of which nothing has run and which a controller makes anew: it loses
    nothing. The pod's label, or the configuration of its claim or class, may say otherwise, and the
    administrator (``--no-evict-failed``). The Eviction API decides by PodDisruptionBudgets. What is
    made anew and fails again is evicted after pauses that grow.
    """
    pod = record.pod
    why = _why_evict(world, pod) if pod.node and pod.pending else ""
    if not why:
        return
    if not world.options.evict_failed:
        message = (
            "the controller may not evict pods: run it with --evict-failed (chart: "
            f"evictFailed.enabled), or delete the pod. {why}"
        )
        _tell_evicted(world, pod, Obstacle(Reason.NOT_EVICTED, message))
        return
    pause = record.eviction = record.eviction or times.growing(times.EVICTION_AGAIN)
    evicted = world.evicted.get(world.cluster.pod_index.template(pod), Evicted)
    due = max(pause.until, evicted.pause.until if pod.created > evicted.at else 0.0)
    if world.now() >= due:
        pause.fail(world.now())
        yield _eviction(world, pod, why, evicted)
    yield Look(max(due, pause.until))


def _eviction(world: World, pod: Pod, why: str, evicted: Evicted) -> Write:
    def done(answer: WriteAnswer) -> None:
        error = answer.error
        if error is None:
            if pod.created > evicted.at:
                evicted.pause.fail(world.now())
                known = (each.created for each in world.cluster.pods.values())
                evicted.at = max(known, default=pod.created)
            message = f"evicted, so that another is placed elsewhere: {why}"
            _tell_evicted(world, pod, Obstacle(Reason.EVICTED, message))
            return
        remedy = (
            "; grant the controller create on pods/eviction (chart: evictFailed.enabled)"
            if isinstance(error, ForbiddenError)
            else ""
        )
        message = f"it cannot be evicted now, which is tried again: {error}{remedy}. {why}"
        _tell_evicted(world, pod, Obstacle(Reason.NOT_EVICTED, message))

    return Write((), one(world.requests.evict, pod), done)


def _tell_evicted(world: World, pod: Pod, obstacle: Obstacle) -> None:
    world.reporter.on_pod(pod, "pod cannot start where it is", obstacle)


def _why_evict(world: World, pod: Pod) -> str:
    """Reason why ``pod`` is to be evicted, in words; empty if it is not."""
    for known in world.claims_of(pod):
        if known.claim.allocation is None:
            continue
        if known.claim.allocation.node != pod.node or not may_be_evicted(world, pod, known):
            continue
        said = failed_prepare(known.obj, driver=world.cluster.driver, reasons=_FAILED)
        if said := said or find_refusal(world, known):
            return f"node {pod.node} cannot prepare claim {known.claim.ref}: {said}"
    return ""


def may_be_evicted(world: World, pod: Pod, known: KnownClaim) -> bool:
    """True if a pod may be evicted where a slice of a claim of it cannot be made."""
    driver = world.cluster.driver
    if label := pod.labels.get(on_failure(driver)):
        return label == _EVICT
    if known.claim.allocation is None or not pod.is_controlled or pod.started:
        return False
    return preparation(known.claim.allocation.config, driver=driver).on_failure == _EVICT


# -- kube-scheduler


def have_scheduler_preempt(world: World, record: PodRecord) -> Iterator[Act]:
    """Have kube-scheduler look again at a pod that has its slices and for which others must end.

    kube-scheduler may refuse a pod without gates, for CPU say, before its claims are allocated.
    Preemption then finds no node, as none has devices for the pod, and kube-scheduler remembers the
    CPU alone. It tries again when any pod ends or after five minutes, not when the claims change.
    But when a pod loses its ``nominatedNodeName``, kube-scheduler treats this for all pods without
    higher priority as if that pod had ended (``hasNominatedNodeNameChanged`` in its
    eventhandlers.go, 1.32 to 1.36). So a nomination is written to the pod and taken back.

    This is done for one pod at a time, and for the next only if it still waits: kube-scheduler may
    have nominated that one meanwhile, and our taking back would undo its nomination. The room made
    for it would then look free to other pods, whose allocations on other nodes kube-scheduler would
    take back.

    It is done as well for a nominated pod that has room and that nobody binds. If two pods get the
    room of one victim, kube-scheduler 1.36.2 may wait for the end of a victim that is gone: its
    second request to delete the victim is answered by 404.
    """
    pod, told = record.pod, record.nomination
    if told is not None and told.is_left and not pod.node:
        yield _nomination(world, pod, told)
        yield Look(told.at)
        return
    now, crowded = world.now(), _crowded_node(world, pod)
    if pod.nominated and crowded == pod.nominated:
        yield Look(now + times.NOMINATED_STUCK)  # victims are ending
        return
    node = crowded or pod.nominated
    is_able = pod.needs.preempts and not world.cluster.hosts.volumes.are_being_made(pod)
    if pod.node or not node or not is_able:
        record.nomination = None
        return
    if told is None or (told.node, told.has_room) != (node, not crowded):
        grace = times.SCHEDULER_PREEMPTS if crowded else times.NOMINATED_STUCK
        told = record.nomination = Nomination(node, now + grace, not crowded)
    told.at = max(told.at, _not_told_before(world, pod))
    if now >= told.at:
        told.pause.fail(now)
        told.at = told.pause.until
        yield _nomination(world, pod, told)
    yield Look(told.at)


def _crowded_node(world: World, pod: Pod) -> str:
    """The node of a pod's claims if other pods have to end there; empty otherwise."""
    if pod.node or not pod.needs.preempts:
        return ""
    found = (known.claim.allocation for known in world.claims_of(pod))
    nodes = {a.node for a in found if a is not None and a.of_driver(world.cluster.driver)}
    node = next(iter(nodes)) if len(nodes) == 1 else ""
    return node if is_crowded(world, pod, node) else ""


def is_crowded(world: World, pod: Pod, node: str) -> bool:
    """True if other pods have to end for ``pod`` on ``node``, and may."""
    hosts, facts = world.cluster.hosts, world.cluster.hosts.facts.get(node)
    if facts is None or not pod.needs.preempts:
        return False
    return bool(find_victims(pod, facts, hosts, delegated=world.allocator.delegated))


def _not_told_before(world: World, pod: Pod) -> float:
    """The monotonic time before which ``pod`` is not nominated, as another pod was or is."""
    last = world.nominating
    if last.is_under_way:
        return world.now() + times.SCHEDULER_PREEMPTS
    was_meant = pod.priority <= last.priority
    return last.at + times.SCHEDULER_PREEMPTS if was_meant else float("-inf")


def _nomination(world: World, pod: Pod, told: Nomination) -> Write:
    # A nomination for another node than that of its claims is taken back: it only keeps room there.
    node = told.node if told.is_left else pod.nominated or told.node
    is_there = told.is_left or bool(pod.nominated)
    world.nominating.is_under_way = True

    def job() -> Iterator[Obj]:
        if not is_there:
            yield world.requests.nominate(pod, node)
        yield world.requests.take_back_nomination(pod, node)

    def done(answer: WriteAnswer) -> None:
        error, last = answer.error, world.nominating
        last.is_under_way, last.priority, last.at = False, pod.priority, world.now()
        told.is_left = not isinstance(error, (NoneType, ConflictError, ForbiddenError))
        if isinstance(error, ForbiddenError):  # the pod stays allocated and only waits longer
            _log.info("not nominated", extra={"pod": str(pod), "error": str(error)})
            error = None
        world.pod_answered(pod.key, error)

    return Write(pod.claim_keys, job, done)
