"""Placing of a pod: the decision on the present fleet, or the obstacle that it waits for.

If a pod waits for another driver too, our allocation is of use only once that driver has served the
pod. kube-scheduler allocates the other driver's claim once ours has its devices, or takes our
allocation back.

It may be unknown which nodes the other driver could serve (``dra.claims.otherdevices``), or that
knowledge may prove wrong, as it covers no DeviceTaintRules and no counters. Then pods that are
alike are not all allocated at once. One is allocated and *unproven*: it is *proven* when the other
driver has served it or it is bound, and *refuted* when its allocation was taken back. Then the next
one is tried. Each proven pod earns that ``SHARE`` more pods may be unproven at a time, so that
allocations in vain stay about a fifth of the proven ones. If more were refuted than proven, one
more pod may be unproven for each ``IN_VAIN`` of the difference, so that many nodes are tried soon.

A pod that stays unproven for a while does not hold others back any longer. A pod that was refuted
more often is tried after others, as kube-scheduler may not look at it for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from functools import partial

from controller import times
from controller.cluster.records import PodRecord, Sent, TemplateRecord
from controller.queue.refusals import BY_SCHEDULER
from controller.queue.refused import About, CouldServe
from controller.queue.searches import alike
from controller.serve import steering
from controller.serve.giving_back import give_back_parts
from controller.serve.world import Act, Look, Wait, World, Write
from dra.allocator.allocate import OngoingDecision, with_room_made
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Decision, Problem
from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

SHARE = 0.2
"""Allocations that may be in vain for each one that was proven."""

IN_VAIN = 4
"""Excess of refuted over proven allocations that allows one more to be unproven at a time."""

REST = 50
"""Rest after a search that was given up, as a multiple of the time that it took."""

MOST = 32
"""Upper bound on the further allocations that may be unproven at a time."""

_OTHERS_FIRST = Obstacle(
    Reason.OTHER_CLAIM,
    "a claim of the pod is for another driver, and where that has devices only kube-scheduler "
    "knows: other pods of the same owner are tried first, or such as ask the same if it has none",
)


def wait_for_others(world: World, record: PodRecord, *, is_known: bool) -> Wait | None:
    """Have a pod wait if enough pods of its template are unproven; None if it need not wait.

    ``is_known``: the nodes that the other driver could serve are known. Then the pod need not
    wait, unless more of its template was refuted than proven.
    """
    template, now, uid = world.cluster.pod_index.template(record.pod), world.now(), record.pod.uid
    known = world.refusals.find(template)
    if known is None or (is_known and known.earned >= 0):
        return None
    others = sum(sent.until > now for other, sent in known.unproven.items() if other != uid)
    long_ago = now - times.ANOTHER_DRIVER_SERVES
    is_next = all(
        in_vain >= record.in_vain or since <= long_ago for since, in_vain in known.held.values()
    )
    if others < _at_once(known) and is_next:
        known.held.pop(uid, None)
        return None
    since, _ = known.held.setdefault(uid, (now, record.in_vain))
    record.alike = template
    # One pod of a group is looked at: pods that were refuted equally often make up a group.
    group, told_at = ("unproven", template, record.in_vain), since + times.ANOTHER_DRIVER_SERVES
    return Wait(None, (), group, told_at) if now < told_at else Wait(_OTHERS_FIRST, (), group)


def _at_once(known: TemplateRecord) -> int:
    return 1 + max(0, int(known.earned), min(MOST, known.in_vain // IN_VAIN))


def unproven(world: World) -> Iterator[Sent]:
    """All unproven pods that still count, of every template."""
    now = world.now()
    for known in world.refusals.records():
        yield from (sent for sent in known.unproven.values() if sent.until > now)


def unproven_nodes(world: World, template: str) -> set[str]:
    known, now = world.refusals.find(template), world.now()
    sent = known.unproven.values() if known is not None else ()
    return {each.node for each in sent if each.until > now}


def begin_unproven(
    world: World, record: PodRecord, node: str = "", claims: tuple[Claim, ...] = ()
) -> Look:
    """Note that a pod is being allocated on ``node``; other drivers are to serve ``claims``."""
    record.alike = world.cluster.pod_index.template(record.pod)
    known = world.refusals.record(record.alike)
    known.held.pop(record.pod.uid, None)
    end = world.now() + times.ANOTHER_DRIVER_SERVES
    known.unproven[record.pod.uid] = Sent(end, node, claims)
    return Look(end)


def watch_unproven(world: World, record: PodRecord) -> Iterator[Act]:
    """Watch a pod that has our devices, maybe by an earlier leader, but not another driver's."""
    known = world.refusals.find(world.cluster.pod_index.template(record.pod))
    sent = known.unproven.get(record.pod.uid) if known is not None else None
    if sent is None:
        yield begin_unproven(world, record)
    elif sent.until > world.now():
        yield Look(sent.until)
    else:
        world.agenda.room_made()


def prove(world: World, record: PodRecord) -> None:
    """Note that the pod has what it wants of other drivers, or is bound."""
    record.in_vain = 0
    if (known := _take(world, record)) is not None:
        known.earned = min(MOST, known.earned + SHARE)
        known.in_vain = max(0, known.in_vain - 1)
        world.agenda.room_made()


def refute(world: World, record: PodRecord) -> None:
    """Note that the allocation of the pod was taken back."""
    if (known := _take(world, record)) is not None:
        known.earned = max(-1.0, known.earned - 1.0)
        known.in_vain += 1
        record.in_vain += 1


def end_unproven(world: World, record: PodRecord) -> None:
    """Note that the pod is gone, or was not allocated after all."""
    record.in_vain = 0
    if _take(world, record) is not None:
        world.agenda.room_made()


def _take(world: World, record: PodRecord) -> TemplateRecord | None:
    """Stop counting a pod as unproven or held; returns its template if it was unproven."""
    known = world.refusals.find(record.alike) if record.alike else None
    record.alike = ""
    if known is None:
        return None
    known.held.pop(record.pod.uid, None)
    return None if known.unproven.pop(record.pod.uid, None) is None else known


SILENT = "its plugin is silent, so that other nodes are tried first"
NOT_THERE = "another driver has no free device there for the pod's other claims"


def place(
    world: World, pod: Pod, problem: Problem, suited: Collection[str] | None
) -> Decision | Wait | list[Write] | None:
    """The decision for ``pod``; a ``Wait`` with the obstacle if there is none.

    Returns writes instead if the pod first gives claims back, to be served as a whole, and None
    while the decision takes longer than this look. ``suited``: result of the function ``suited``.

    Raises:
        SelectorError: a selector does not compile.
        UnansweredError: a selector is still to be evaluated.
    """
    problem = without_excluded(world, problem, suited)
    found = _decide(world, pod, problem)
    if isinstance(found, Decision) and found.node in steering.busy(world):
        return Wait(None, (), _group(problem))
    if not isinstance(found, Obstacle):
        return found
    if found.reason is Reason.WAITING:
        world.line.waits(pod, problem)
    else:
        world.line.leaves(pod.uid)
    group = pod.key if world.line.is_held_for(pod.uid) else _group(problem)
    return Wait(found, refs(problem), group)


def _group(problem: Problem) -> Hashable:
    key = alike(problem)
    return problem.pod.key if key is None else key


def refs(problem: Problem) -> list[ClaimRef]:
    return [wants.claim.ref for wants in problem.claims]


def counts_already(world: World, problem: Problem) -> bool:
    """True if a claim of ``problem`` has an allocation that counts, written or reserved by us.

    To decide such a claim anew would stop counting it.
    """
    return any(world.cluster.fleet.counts(wants.claim.ref.uid) for wants in problem.claims)


def without_excluded(world: World, problem: Problem, suited: Collection[str] | None) -> Problem:
    """``problem`` without the nodes that are left out for its pod for a while.

    Nodes that are not ``suited`` are left out too: another driver lacks what the pod asks of it.
    """
    excluded = world.refusals.excluded(world.cluster.pod_index.template(problem.pod))
    if suited is not None:
        excluded |= dict.fromkeys(world.cluster.hosts.facts.keys() - suited, NOT_THERE)
    excluded.pop(problem.pod.nominated, None)  # kube-scheduler makes room there
    return replace(problem, excluded=excluded) if excluded else problem


def suited(world: World, problem: Problem) -> Collection[str] | None:
    """Nodes where other drivers could serve the pod; None if that is unknown or no matter.

    Raises:
        UnansweredError: a selector is still to be evaluated.
    """
    if not problem.others:
        return None
    cluster = world.cluster
    return cluster.others.nodes_for(
        problem.others,
        cluster.classes,
        cluster.fleet.kinds.selected_others,
        cluster.hosts.facts.keys(),
        awaited=((sent.node, sent.claims) for sent in unproven(world)),
    )


def attempts(world: World, problem: Problem) -> Iterator[Problem]:
    """Versions of ``problem`` to try in order, at first without nodes likely to be refused.

    Nodes with a silent plugin come last, and are not left out: a clock may be wrong; so do nodes to
    which kube-scheduler did not put the last pod. Those to which another is on its way come before.
    """
    template = world.cluster.pod_index.template(problem.pod)
    awaited, busy = unproven_nodes(world, template), steering.busy(world)
    silent = dict.fromkeys(world.cluster.silent_nodes(world.requests.now()), SILENT)
    silent |= dict.fromkeys(world.missed, BY_SCHEDULER)
    silent.pop(problem.pod.nominated, None)  # kube-scheduler makes room there
    excluded = silent | dict(problem.excluded)
    for last in world.refusals.tried_last(template, world.cluster.hosts.facts, awaited):
        yield replace(problem, excluded=dict.fromkeys(last, BY_SCHEDULER) | busy | excluded)
    if busy:
        yield replace(problem, excluded=busy | excluded)
    if silent:
        yield replace(problem, excluded=excluded)
    yield problem


def _decide(world: World, pod: Pod, problem: Problem) -> Decision | Obstacle | list[Write] | None:
    yielding, allocator = world.line.yielding_to(pod), world.line.allocator_for(pod)
    if (over := allocator.fleet.quotas.find_over(problem.claims)) is not None:
        return [*give_back_parts(world, pod, problem, allocator.fleet)] or over
    could_serve = partial(allocator.could_serve, with_room_made(problem, allocator))
    if (obstacle := _failed(world, problem, yielding, could_serve)) is not None:
        return obstacle
    asked = tuple((c.claim.ref.uid, c.choices, c.constraints) for c in problem.claims)
    tried = [*attempts(world, problem)]

    def renew(ongoing: OngoingDecision) -> None:
        ongoing.attempts, ongoing.places = tried, allocator

    made = world.decisions.decide(
        pod.key,
        pod.key,
        asked=(pod.uid, asked),  # where the pod may go is looked at each time
        begin=lambda: OngoingDecision(tried, allocator, preempts=True),
        renew=renew,
    )
    if made is None:
        return None
    outcome = made.outcome
    world.reporter.metrics.decided(made.seconds, placed=outcome.decision is not None)
    if outcome.decision is not None:
        return outcome.decision
    parts = [*give_back_parts(world, pod, problem, allocator.fleet)]
    if parts or outcome.over is not None:
        return parts or outcome.over
    obstacle = as_obstacle(explain(problem, allocator, given_up=outcome.given_up))
    key, refused = alike(problem), world.refused
    if not made.is_outdated and key is not None:
        refused.note(About.SEARCH, (key, yielding), obstacle, room=refused.room.version)
    if outcome.given_up is not None:
        refused.note(About.LONG_SEARCH, _searched(problem), obstacle, seconds=REST * made.seconds)
    return obstacle


def _failed(
    world: World, problem: Problem, yielding: frozenset[str], could_serve: CouldServe
) -> Obstacle | None:
    """The obstacle by which an equal problem would fail again; None if a search is to be made.

    A search that was given up took long while other pods waited: it is not made again for many
    times as long, whatever becomes free.
    """
    key = alike(problem)
    known = world.refused.find(About.LONG_SEARCH, _searched(problem))
    if known is None and key is not None:
        known = world.refused.find(About.SEARCH, (key, yielding), could_serve)
    return known.why if known is not None else None


def _searched(problem: Problem) -> Hashable:
    key = alike(problem)
    return frozenset(claim.claim.ref.uid for claim in problem.claims) if key is None else key
