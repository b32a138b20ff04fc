"""Rules for a pod that waits for us, in order, and the loop that asks them.

A rule is a function of the world and of a pod's record. It yields what is to be done: look again at
a time, wait and say why, or write. A rule begins no write itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from controller.cluster.records import PodRecord
from controller.queue.line import pod_waiter
from controller.serve import making_room, placing, steering
from controller.serve.allocations import (
    allocate,
    is_gated,
    lift_gate,
    repeat_uncertain_writes,
    unwritten,
)
from controller.serve.binding import may_wait_until, waits_for_slices
from controller.serve.gangs import find_gang, half_gang, holds_gate, place_gang
from controller.serve.giving_back import (
    FindCause,
    give_back_failed_prepares,
    give_back_unused,
    hindered,
    lost_node,
    rests,
)
from controller.serve.nudges import (
    evict,
    have_kubelet_ask,
    have_scheduler_preempt,
    keep_claim_names,
)
from controller.serve.placing import counts_already, place, refs, suited
from controller.serve.world import DONE, Act, Look, Wait, World, Write
from dra.allocator.problem import Decision, Problem, Satisfied
from dra.cel.offers import UnansweredError
from dra.claims.claims import find_unseen
from dra.claims.reader import Fault
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod

Rule = Callable[[World, PodRecord], Iterator[Act]]


def serve(world: World, key: ObjectKey) -> bool:
    """Ask the rules for a pod, and do what they say; returns True if a write is under way."""
    pod = world.agenda.waiting_pod(key)
    world.agenda.leave(key)
    if pod is None:
        return False
    record = world.cluster.pod_index.record(pod)
    record.examined = None
    _ask(world, record, NUDGES)
    if world.in_flight.is_about(pod.claim_keys):
        world.agenda.hold_up(key, is_claim=False)
        return True
    try:
        _ask(world, record, RULES)
    except UnansweredError as error:
        world.ask(pod, error)
    return world.in_flight.is_about(pod.claim_keys)


def _ask(world: World, record: PodRecord, rules: tuple[Rule, ...]) -> None:
    for rule in rules:
        ends = [world.take(record.pod, act) for act in rule(world, record)]
        if any(ends):
            return


def tell_what_it_lacks(world: World, record: PodRecord) -> Iterator[Act]:
    """Hand a pod that lacks nothing of us over to kube-scheduler; tell a pod at fault so."""
    pod = record.pod
    if world.examined(record) is not None or record.examined is None:
        return
    found, foreign = record.examined.found, record.examined.foreign
    world.line.leaves(pod.uid)
    making_room.end(world, record)
    if isinstance(found, Fault):
        yield Wait(found.obstacle, [found.claim])
        return
    if isinstance(found, Satisfied):
        if found.ours and foreign is not None and not pod.node:
            yield from placing.watch_unproven(world, record)
        else:
            placing.prove(world, record)
        if found.ours and not holds_gate(world, pod):  # nobody is ended for half a gang
            if is_gated(world, pod):
                yield lift_gate(world, pod)
            elif all(may_wait_until(world, known) is None for known in world.claims_of(pod)):
                yield from have_scheduler_preempt(world, record)
        if found.ours:
            tell_what_is_unseen(world, pod)
        world.reporter.served(pod)
    yield DONE


def tell_what_is_unseen(world: World, pod: Pod) -> None:
    """Tell a pod that has its slices what of them its containers do not get."""
    ours = [k.claim for k in world.claims_of(pod) if k.claim.allocation is not None]
    held = [c for c in ours if c.allocation and c.allocation.of_driver(world.cluster.driver)]
    if text := find_unseen(pod.obj, pod.claims, held):
        what = "containers get no device"
        world.reporter.on_pod(pod, what, Obstacle(Reason.UNSEEN, text))


def rest(world: World, record: PodRecord) -> Iterator[Act]:
    """Have a pod wait for a pause if its slices were taken back, as it could not run with them."""
    problem, rested = world.examined(record), rests(world, record)
    if problem is not None and rested is not None:
        world.line.leaves(record.pod.uid)
        yield Wait(rested[1], refs(problem), at=rested[0])


def await_another_pod(world: World, record: PodRecord) -> Iterator[Act]:
    """Have a pod wait while another pod's claim, which it names too, is being written."""
    problem = world.examined(record)
    if problem is not None and counts_already(world, problem):
        yield Wait(None, (), record.pod.key)


def serve_gang(world: World, record: PodRecord) -> Iterator[Act]:
    problem = world.examined(record)
    gang = find_gang(world, record.pod) if problem is not None else None
    if problem is not None and gang is not None:
        for act in place_gang(world, record.pod, gang):
            yield act._replace(claims=refs(problem)) if isinstance(act, Wait) else act
        yield DONE


def place_alone(world: World, record: PodRecord) -> Iterator[Act]:
    """Place a pod by itself: allocate its slices, or have it wait."""
    pod, problem = record.pod, world.examined(record)
    if problem is None or record.examined is None:
        return
    nodes, is_theirs = suited(world, problem), world.cluster.fleet.is_all_schedulers
    if record.examined.foreign and not is_theirs and not world.line.is_held_for(pod.uid):
        wait = placing.wait_for_others(world, record, is_known=nodes is not None)
        if wait is not None:
            yield wait
            return
    found = place(world, pod, problem, nodes)
    if isinstance(found, Wait):
        if found.why is not None and found.why.reason is Reason.WAITING:
            if (write := steering.send_without_room(world, pod)) is not None:
                yield write
                return
            posed = placing.without_excluded(world, problem, nodes)
            yield from making_room.make_room(world, record, posed)
        yield found
    elif isinstance(found, list):
        yield from found
    elif found is not None and steering.is_steered(world, found):
        turn = steering.wait_for_turn(world, [pod])
        yield turn or steering.steer(world, pod, found, problem.claims)
    elif found is not None:
        yield from _write(world, record, problem, found)


def _write(
    world: World, record: PodRecord, problem: Problem, decision: Decision
) -> Iterator[Look | Write]:
    pod = record.pod

    def done(error: Exception | None) -> None:
        if error is None:
            world.line.served(pod)
        else:
            placing.end_unproven(world, record)
            world.line.keep(pod_waiter(pod), unwritten(world, pod, decision))
        world.pod_answered(pod.key, error)

    if record.examined is not None and record.examined.foreign is not None:
        yield placing.begin_unproven(world, record, decision.node, problem.others)
    awaits = waits_for_slices(world, decision, problem.claims)
    yield allocate(world, pod, decision, problem.claims, done, awaits_slices=awaits)


CAUSES: tuple[FindCause, ...] = (lost_node, half_gang, hindered)
"""Causes to give unused allocations back; their delays are in ``controller.times``."""

NUDGES: tuple[Rule, ...] = (keep_claim_names, have_kubelet_ask, evict)
"""Rules that are asked even while a claim of the pod is written: they write to no claim."""

RULES: tuple[Rule, ...] = (
    steering.await_scheduler,
    repeat_uncertain_writes,
    give_back_failed_prepares,
    partial(give_back_unused, causes=CAUSES),
    tell_what_it_lacks,
    steering.leave_to_scheduler,
    rest,
    await_another_pod,
    serve_gang,
    steering.await_turn,
    place_alone,
)
"""Rules in order; the look ends with the first one that writes to a claim or has the pod wait."""
