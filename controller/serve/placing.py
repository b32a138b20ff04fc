"""Placing of a pod: the decision on the present fleet, or the obstacle that it waits for.

An allocation may be of use only once another driver has served the same pod. kube-scheduler
allocates for the other driver once our devices are there, or takes ours back. Where it is not known
which nodes the other driver could serve (``dra.claims.otherdevices``), or what is known proves
wrong (of DeviceTaintRules and counters it knows nothing), pods that are alike are not all sent to
nodes that none of them was taken on: one is allocated, and the next when that is proven (another
driver has served the pod) or refuted (it was taken back). What is proven earns that more may be
unproven at a time, so that what is allocated in vain stays a fifth of that where it can. Where most
were in vain so far, a quarter as many may be at a time, on a node each, so that each of many nodes
is tried soon.

Whoever has no answer for a while does not keep others from being tried any longer. Whoever was
refused more often is tried after others: kube-scheduler may not look at it for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from controller import times
from controller.cluster.records import AlikePods, PodRecord, Sent
from controller.queue import searches
from controller.queue.refusals import BY_SCHEDULER
from controller.queue.searches import alike
from controller.serve.giving_back import give_back_parts
from controller.serve.world import Act, Look, Wait, World, Write
from dra.allocator.allocate import Allocator, OngoingDecision, with_room_made
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Decision, Outcome, Problem
from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

SHARE = 0.2
"""Allocations that may be in vain for each one that was not."""

IN_VAIN = 4
"""Allocations in vain, more than those that were not, for each further one at a time."""

MOST = 32
"""Allocations that may be in vain together, whatever was earned."""

_OTHERS_FIRST = Obstacle(
    Reason.OTHER_CLAIM,
    "a claim of the pod is for another driver, and where that has devices only kube-scheduler "
    "knows: other pods of the same owner are tried first, or such as ask the same if it has none",
)


def wait_for_others(world: World, record: PodRecord, *, is_known: bool) -> Wait | None:
    """Have a pod wait if enough of its template are unproven; None where it need not.

    Not so where ``is_known`` which nodes the other driver could serve, unless more was refuted of
    that than proven.
    """
    template, now, uid = world.cluster.pod_index.template(record.pod), world.now(), record.pod.uid
    known = world.alike.find(template)
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
    # Of a group one is looked at: those that were refused as often are next together.
    group, told_at = ("unproven", template, record.in_vain), since + times.ANOTHER_DRIVER_SERVES
    return Wait(None, (), group, told_at) if now < told_at else Wait(_OTHERS_FIRST, (), group)


def _at_once(known: AlikePods) -> int:
    return 1 + max(0, int(known.earned), min(MOST, known.in_vain // IN_VAIN))


def unproven(world: World) -> Iterator[Sent]:
    """All pods that are unproven and not out of time."""
    now = world.now()
    for known in world.alike.values():
        yield from (sent for sent in known.unproven.values() if sent.until > now)


def unproven_nodes(world: World, template: str) -> set[str]:
    known, now = world.alike.find(template), world.now()
    sent = known.unproven.values() if known is not None else ()
    return {each.node for each in sent if each.until > now}


def begin_unproven(
    world: World, record: PodRecord, node: str = "", claims: tuple[Claim, ...] = ()
) -> Look:
    """A pod is being allocated on ``node``, where others are to serve ``claims``."""
    record.alike = world.cluster.pod_index.template(record.pod)
    known = world.alike.get(record.alike, AlikePods)
    known.held.pop(record.pod.uid, None)
    end = world.now() + times.ANOTHER_DRIVER_SERVES
    known.unproven[record.pod.uid] = Sent(end, node, claims)
    return Look(end)


def watch_unproven(world: World, record: PodRecord) -> Iterator[Act]:
    """A pod is allocated, maybe since an earlier leader, and not served by the other."""
    known = world.alike.find(world.cluster.pod_index.template(record.pod))
    sent = known.unproven.get(record.pod.uid) if known is not None else None
    if sent is None:
        yield begin_unproven(world, record)
    elif sent.until > world.now():
        yield Look(sent.until)
    else:
        world.agenda.room_made()


def prove(world: World, record: PodRecord) -> None:
    """The pod has what it wants of other drivers, or is bound."""
    record.in_vain = 0
    if (known := _take(world, record)) is not None:
        known.earned = min(MOST, known.earned + SHARE)
        known.in_vain = max(0, known.in_vain - 1)
        world.agenda.room_made()


def refute(world: World, record: PodRecord) -> None:
    """The allocation of the pod was taken back, and so there is room."""
    if (known := _take(world, record)) is not None:
        known.earned = max(-1.0, known.earned - 1.0)
        known.in_vain += 1
        record.in_vain += 1


def end_unproven(world: World, record: PodRecord) -> None:
    """The pod is gone, or was not allocated after all."""
    record.in_vain = 0
    if _take(world, record) is not None:
        world.agenda.room_made()


def _take(world: World, record: PodRecord) -> AlikePods | None:
    """Template of which a pod was unproven; it is neither that nor held any longer."""
    known = world.alike.find(record.alike) if record.alike else None
    record.alike = ""
    if known is None:
        return None
    known.held.pop(record.pod.uid, None)
    return None if known.unproven.pop(record.pod.uid, None) is None else known


NOT_THERE = "another driver has no free device there for the pod's other claims"


def place(
    world: World, pod: Pod, problem: Problem, suited: Collection[str] | None
) -> Decision | Wait | list[Write] | None:
    """The decision for ``pod``, or why there is none; None when it is to be asked again.

    Or what it gives back, so that it can be served as a whole. ``suited`` as of ``suited``.

    Raises:
        SelectorError: a selector does not compile.
        UnansweredError: a selector is still to be evaluated.
    """
    problem = without_excluded(world, problem, suited)
    found = _decide(world, pod, problem)
    if not isinstance(found, Obstacle):
        return found
    if found.reason is Reason.WAITING:
        world.line.waits(pod, problem)
    else:
        world.line.leaves(pod.uid)
    key = alike(problem)
    group: Hashable = pod.key if key is None or world.line.is_held_for(pod.uid) else key
    return Wait(found, refs(problem), group)


def refs(problem: Problem) -> list[ClaimRef]:
    return [wants.claim.ref for wants in problem.claims]


def without_excluded(world: World, problem: Problem, suited: Collection[str] | None) -> Problem:
    """``problem`` without the nodes that are left out for its pod for a while.

    Nor with those that are not ``suited``: another driver has not what the pod asks of it.
    """
    excluded = world.refusals.excluded(world.cluster.pod_index.template(problem.pod))
    if suited is not None:
        excluded |= dict.fromkeys(world.cluster.hosts.facts.keys() - suited, NOT_THERE)
    excluded.pop(problem.pod.nominated, None)  # kube-scheduler makes room there
    return replace(problem, excluded=excluded) if excluded else problem


def suited(world: World, problem: Problem) -> Collection[str] | None:
    """Nodes where other drivers could serve the pod; None where that cannot be told.

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
    """``problem``, first without nodes that kube-scheduler is likely to refuse for its pod."""
    template = world.cluster.pod_index.template(problem.pod)
    awaited = unproven_nodes(world, template)
    for last in world.refusals.tried_last(template, world.cluster.hosts.facts, awaited):
        yield replace(problem, excluded={**dict.fromkeys(last, BY_SCHEDULER), **problem.excluded})
    yield problem


@dataclass(slots=True)
class _Attempts:
    """Attempts at one problem, on fewer nodes first, of which so many were ``refused``."""

    decision: OngoingDecision
    refused: int = 0

    def go_on(self, attempts: Sequence[Problem], allocator: Allocator) -> Outcome | None:
        """Make a part of each attempt until one is not refused, the last one on all nodes.

        At the end of that also where kube-scheduler would make room.
        """
        while True:
            last = self.refused >= len(attempts) - 1
            self.decision.problem = attempts[min(self.refused, len(attempts) - 1)]
            self.decision.preempts = last
            outcome = self.decision.go_on(allocator, steps=searches.PART_STEPS)
            if outcome is None or outcome.decision is not None or last:
                return outcome
            self.refused += 1
            self.decision = OngoingDecision(attempts[self.refused])


def _decide(world: World, pod: Pod, problem: Problem) -> Decision | Obstacle | list[Write] | None:
    yielding, allocator = world.line.yielding_to(pod), world.line.allocator_for(pod)
    if (over := allocator.fleet.quotas.find_over(problem.claims)) is not None:
        return [*give_back_parts(world, pod, problem, allocator.fleet)] or over
    could_serve = partial(allocator.could_serve, with_room_made(problem, allocator))
    obstacle = world.failed.find(problem, yielding, could_serve)
    if obstacle is not None:
        return obstacle
    asked = tuple((c.claim.ref.uid, c.choices, c.constraints) for c in problem.claims)
    tried = [*attempts(world, problem)]
    made: searches.Made[Outcome] | None = world.decisions.decide(
        pod.key,
        pod.key,
        asked=(pod.uid, asked),  # where the pod may go is looked at each time
        begin=lambda: _Attempts(OngoingDecision(tried[0])),
        go_on=lambda known: known.go_on(tried, allocator),
    )
    if made is None:
        return None
    outcome = made.outcome
    world.reporter.metrics.decided(made.seconds, placed=outcome.decision is not None)
    if outcome.decision is not None:
        if (log := world.reporter.decisions) is not None:
            log.placed(
                pod, problem.claims, outcome.decision, passed=outcome.passed, without=yielding
            )
        return outcome.decision
    parts = [*give_back_parts(world, pod, problem, allocator.fleet)]
    if parts or outcome.over is not None:
        return parts or outcome.over
    obstacle = as_obstacle(explain(problem, allocator, given_up=outcome.given_up))
    if not made.is_outdated:
        world.failed.add(problem, yielding, obstacle)
    if outcome.given_up is not None:
        world.failed.rest(problem, obstacle, seconds=made.seconds)
    return obstacle
