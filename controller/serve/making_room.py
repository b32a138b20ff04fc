"""Room for a pod that has none: other pods are moved or ended, by a plan of ``allocator.planner``.

Each look makes a new plan from the present state, so that the next leader can go on or stop at any
point. The devices that others are to leave are held back for the pod. Pods are moved one at a time:
the next one is moved when a new pod has been served in the place of the last. Pods that end for
good are ended together. Anything unexpected stops it: the devices are no longer held back, and no
room is made for the pod for some minutes.

Pods may be moved if they allow it (``dra.allocator.movers``), in two cases: an administrator asks
for it, by an annotation of a MigNode, which no tenant writes; or their node has opted in, and the
limit of moves an hour is not reached. A new leader supposes that the former one has just used up
the limit.

Pods of lower priority may be ended if the administrator lets the controller do it. Those that no
PodDisruptionBudget protects, as the Eviction API tells, are ended before others, and then those of
the lowest priority.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from api.mignode import RoomRequest
from controller import times
from controller.cluster.records import PodRecord, RoomMaking
from controller.queue.refused import About
from controller.queue.searches import alike
from controller.serve.world import Act, Look, World, Write
from controller.write.in_flight import WriteAnswer, one
from dra.allocator.allocate import Allocator
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.movers import (
    Asked,
    Destinations,
    Leave,
    find_asked,
    is_possible,
    may_move,
    movers_on,
)
from dra.allocator.ongoing import Ongoing, Steps
from dra.allocator.planner import Plan, Planned, Step, plan
from dra.allocator.problem import Problem
from dra.allocator.sites import Ending, Mover
from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj
from dra.gpu.names import defrag
from dra.kube.errors import ConflictError, ForbiddenError, ObjectNotFoundError, UnavailableError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

_SHARE = 10
"""Pause before the next plan, as a multiple of the time that the last one took."""

_PLAN = "room"
"""Key of the decision that is the plan; one plan is made at a time."""

_BUDGET = "DisruptionBudget"
"""Cause in the Eviction API's answer 429 if a PodDisruptionBudget forbids the eviction."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """Means by which room may be made for a pod.

    ``moves``: how many pods may be moved. ``ends``: pods of lower priority may be ended.
    ``request``: the administrator's request, if there is one, and the ``node`` that it is for.
    Pods of all nodes may then be moved, to make room on that node.
    """

    moves: int = 0
    ends: bool = False
    request: RoomRequest | None = None
    node: str = ""


def make_room(world: World, record: PodRecord, problem: Problem) -> Iterator[Act]:
    """Have other pods leave so that a pod that found no room has some."""
    terms, known, now = _terms(world, record), record.room, world.now()
    asked = find_asked(problem, world.cluster.fleet) if terms is not None else None
    if terms is None or known is None or asked is None:
        end(world, record)
        return
    if known.is_under_way:
        return
    if known.began is not None and now >= known.began + times.ROOM_MADE:
        _stop(world, record, f"it has taken more than {times.ROOM_MADE:.0f} s")
    elif known.moved is not None:
        yield Look(now + times.ROOM_LOOK)
        if (why := _surprise(world, record, known.moved)) is not None:
            _stop(world, record, why)
    if now < known.pause.until:
        yield Look(known.pause.until)
    elif known.moved is None:
        yield from _go_on(world, record, _Making(problem, known, terms, asked))


def end(world: World, record: PodRecord) -> None:
    """Stop making room for a pod that is served or gone, or for which nobody may leave now."""
    if world.rooms.moving is record:
        world.rooms.moving = None
    if record.room is not None and record.room.began is not None:
        record.room.left = record.room.moved = record.room.began = None
        world.line.end_made(record.pod)


def _stop(world: World, record: PodRecord, why: str) -> None:
    """Stop making room for a pod, for the reason ``why``, and tell it; a pause begins."""
    if (known := record.room) is not None:
        known.pause.fail(world.now())
        known.over = known.request.id if known.request is not None else ""
        end(world, record)
        message = f"others make no room for it: {why}; it waits as before"
        _tell(world, record.pod, Reason.ROOM_NOT_MADE, message)


# -- what may be done


def _terms(world: World, record: PodRecord) -> _Terms | None:
    pod, now, options = record.pod, world.now(), world.options
    found = ((n, r) for n, r in world.cluster.room_requests.items() if r.uid == pod.uid)
    node, request = next(found, ("", None))
    residents = world.cluster.hosts.residents
    ends = options.preemption and pod.needs.preempts and residents.lowest_priority < pod.priority
    if request is None and not options.moves_per_hour and not ends:
        return None
    known = record.room = record.room or RoomMaking(now)
    if request is not None and request != known.request:
        if known.request is None or request.id != known.request.id:
            known.pause.until = now
        known.request, known.request_at = request, now
    is_over = request is None or request.id == known.over
    if request is not None and not is_over and now < known.request_at + times.ROOM_REQUEST:
        return _Terms(request.moves, request=request, node=node)
    has_waited = now >= known.since + times.ROOM_WANTED
    moves = sum(slot <= now for slot in world.rooms.slots) if has_waited else 0
    return _Terms(moves, ends) if moves or ends else None


@dataclass(frozen=True, slots=True)
class _Making:
    """Making of room for one pod, in one look: its record, what is allowed and what it asks."""

    problem: Problem
    known: RoomMaking
    terms: _Terms
    asked: Asked


def _leave(world: World, pod: Pod, terms: _Terms, *, moves: bool) -> Leave:
    """Rules by which others leave for ``pod``: by their end if allowed, and by ``moves``."""
    driver, facts = world.cluster.driver, world.cluster.hosts.facts
    records, now = world.cluster.pod_index.records, world.now()

    def may_be_moved(other: Pod) -> bool:
        if not moves or not may_move(other, driver):
            return False
        node = facts.get(other.node)
        has_opted_in = node is not None and node.labels.get(defrag(driver)) == "true"
        return terms.request is not None or has_opted_in

    def ending(other: Pod) -> Ending | None:
        if not terms.ends or other.priority >= pod.priority:
            return None
        record = records.get(other.uid)
        return Ending(other.priority, record is not None and now < record.budget_until)

    return Leave(may_be_moved, ending)


# -- the plan


def _plan(
    world: World, making: _Making, allocator: Allocator, budget: Steps
) -> Generator[None, None, Planned]:
    """Plan with as many moves as are allowed at the most, or else without any; made in parts."""
    problem, terms, asked, driver = making.problem, making.terms, making.asked, world.cluster.driver
    find, bounded = partial(_find, world), False
    places = Destinations(
        allocator, problem, find, kinds=asked.offers.keys(), makes_room=terms.ends
    )

    def may_go(mover: Mover | None, gpu: GpuId) -> bool:
        if mover is None and terms.node not in ("", gpu.node):
            return False
        return places.suits(mover, gpu)

    for moves in (True, False):
        if not (terms.moves if moves else terms.ends):
            continue
        leave = _leave(world, problem.pod, terms, moves=moves)

        def movers(state: GpuState, leave: Leave = leave) -> Iterator[Mover]:
            for mover in movers_on(state, find, driver, leave):
                pod = _pod_of(world, mover)
                is_told = pod is not None and pod.uid in making.known.ended
                yield replace(mover, ending=None, is_leaving=True) if is_told else mover

        found = yield from plan(allocator.fleet, [asked.profile], movers, budget, may_go=may_go)
        if found.plan is not None and len(found.plan.moves) <= terms.moves:
            return found
        bounded = bounded or found.bounded
    return Planned(None, bounded)


def _find(world: World, uid: str) -> tuple[Claim, list[Pod]] | None:
    index = world.cluster.claim_index
    key = index.key_of_uid.get(uid)
    if key is None:
        return None
    return index.by_key[key].claim, world.cluster.pod_index.of_claim(key)


def _pod_of(world: World, mover: Mover) -> Pod | None:
    found = _find(world, mover.uid)
    return found[1][0] if found is not None and len(found[1]) == 1 else None


def _go_on(world: World, record: PodRecord, making: _Making) -> Iterator[Act]:
    pod, known, rooms, now = record.pod, making.known, world.rooms, world.now()
    key = alike(making.problem)
    kind: Hashable = (pod.uid if key is None or making.terms.request else key, pod.priority)
    if known.began is None and world.refused.find(About.PLAN, kind) is not None:
        return
    others = world.decisions.is_begun(_PLAN) and rooms.planned != pod.uid
    if others or (now < rooms.not_before and not world.decisions.is_begun(_PLAN)):
        yield Look(max(rooms.not_before, now + times.ROOM_LOOK))
        return
    rooms.planned = pod.uid
    allocator, budget = world.line.allocator_for(pod), Steps()
    made = world.decisions.decide(
        _PLAN,
        pod.key,
        asked=(pod.uid, making.terms, making.asked.profile),
        begin=lambda: Ongoing(_plan(world, making, allocator, budget), budget),
    )
    if made is None:
        return
    rooms.not_before = world.now() + _SHARE * made.seconds
    plan = made.outcome.plan
    if plan is not None and not is_possible(plan, allocator.fleet):
        yield Look(now + times.ROOM_LOOK)
    elif plan is not None:
        yield from _carry_out(world, record, making, plan)
    elif known.began is not None:
        _stop(world, record, "who was to leave may not any more, or has no other place now")
    elif making.terms.request is not None:
        moves = f"up to {making.terms.moves} moves of pods that may be moved"
        _stop(world, record, f"{moves} make no room for it on node {making.terms.node}")
    else:
        world.refused.note(About.PLAN, kind, seconds=times.ROOM_IN_VAIN)


def _carry_out(world: World, record: PodRecord, making: _Making, plan: Plan) -> Iterator[Act]:
    """Take the next step of ``plan``: end the pods that are to end, or move one pod."""
    pod, known, now = record.pod, making.known, world.now()
    ended = [m for m in plan.ends if not m.is_leaving]
    number = len(ended) + len(plan.moves)
    if known.left is not None and number > known.left:
        _stop(world, record, f"{number} pods would have to leave now, and {known.left} were to")
        return
    if not number and not plan.ends:
        return  # there is room, and it is placed with the next look
    if plan.moves and world.rooms.moving not in (None, record):
        yield Look(now + times.ROOM_LOOK)
        return
    known.began, known.left = known.began or now, number
    step = plan.steps[-1]
    state = world.cluster.fleet.state(step.gpu)
    decision = making.asked.request.at(
        state, making.asked.offers[state.kind], step.occupant.placement
    )
    world.line.hold_made(pod, decision, seconds=times.ROOM_MADE)
    yield Look(now + times.ROOM_LOOK)
    if ended:
        yield from _end_all(world, record, known, ended)
    elif not plan.ends:
        yield from _move(world, record, making, plan.moves[0])


# -- who leaves


def _move(world: World, record: PodRecord, making: _Making, step: Step) -> Iterator[Write]:
    known, rooms, now = making.known, world.rooms, world.now()
    moved = _pod_of(world, step.mover) if step.mover is not None else None
    if moved is None or step.mover is None:
        return
    known.is_under_way, rooms.moving = True, record
    if making.terms.request is None:
        rooms.slots.remove(min(rooms.slots))
        rooms.slots.append(now + times.HOUR)
    pods = world.cluster.pods.values()
    peers = frozenset(p.uid for p in pods if p.template == moved.template)
    place = f"{step.mover.profile} on gpu-{step.mover.gpu.minor} of node {step.mover.gpu.node}"

    def done(answer: WriteAnswer) -> None:
        known.is_under_way = False
        if answer.error is not None:
            _stop(world, record, f"{_named(moved, record.pod)} is not moved: {_why(answer.error)}")
        else:
            known.moved, known.peers = moved, peers
            known.replaced_by = world.now() + times.ROOM_MADE
            known.left = (known.left or 1) - 1
            then = f"; {known.left} more are to move" if known.left else ""
            whom = _named(record.pod, moved)
            message = f"evicted, so that another is served elsewhere: its {place} is for {whom}"
            _tell(world, moved, Reason.MOVED, message)
            whom = _named(moved, record.pod)
            message = f"{whom} is moved for it, which had {place}{then}"
            _tell(world, record.pod, Reason.MAKING_ROOM, message)
        world.agenda.add_pod(record.pod.key)

    yield Write((), one(world.requests.evict, moved), done)


def _surprise(world: World, record: PodRecord, moved: Pod) -> str | None:
    """Reason to stop after a move; None without one.

    If a new pod was served in the place of ``moved``, ``moved`` is taken out of the record, so that
    the next pod can be moved.
    """
    known, pods, now = record.room, world.cluster.pods, world.now()
    there = pods.get(moved.key)
    if known is None:
        return None
    if there is not None and there.uid == moved.uid:
        return None  # it is still ending; ``times.ROOM_MADE`` bounds that
    known.replaced_by = min(known.replaced_by, now + times.ROOM_REPLACED)
    new = [p for p in pods.values() if p.template == moved.template and p.uid not in known.peers]
    for pod in new:
        claims = [*world.claims_of(pod)]
        if len(claims) == len(pod.claims) and all(c.claim.allocation for c in claims):
            nodes = {c.claim.allocation.node for c in claims if c.claim.allocation is not None}
            message = (
                f"{_named(pod, record.pod)} is served on node {', '.join(nodes)}, in the place of "
                "the one that was moved"
            )
            _tell(world, record.pod, Reason.MAKING_ROOM, message)
            known.moved = None
            return None
    if now < known.replaced_by:
        return None
    return f"no pod was served within {times.ROOM_REPLACED:.0f} s in the place of the one moved"


def _end_all(
    world: World, record: PodRecord, known: RoomMaking, movers: list[Mover]
) -> Iterator[Write]:
    known.is_under_way = True
    found = ((_pod_of(world, mover), mover.ending) for mover in movers)
    ended = [(pod, ending) for pod, ending in found if pod is not None and ending is not None]
    tried: list[Pod] = []

    def job() -> Iterator[Obj]:
        requests = world.requests
        for pod in (pod for pod, ending in ended if not ending.is_against_budget):
            tried.append(pod)
            yield requests.evict(pod, dry_run=True)
        for pod, ending in ended:
            tried.append(pod)
            if ending.is_against_budget:
                yield requests.end(pod, _preempted(pod, record.pod))
            else:
                yield requests.evict(pod)
            known.ended.add(pod.uid)

    def done(answer: WriteAnswer) -> None:
        known.is_under_way, error = False, answer.error
        _tell_ended(world, record.pod, [pod for pod, _ in ended if pod.uid in known.ended])
        if isinstance(error, UnavailableError) and _is_of_budget(error):
            until = world.now() + times.BUDGET_REMEMBERED
            world.cluster.pod_index.record(tried[-1]).budget_until = until
        elif error is not None and not isinstance(error, ObjectNotFoundError | ConflictError):
            who = _named(tried[-1], record.pod)
            _stop(world, record, f"{who} is not ended: {_why(error)}")
        known.left = 0 if error is None else None  # None: the next plan may have more steps
        world.agenda.add_pod(record.pod.key)

    yield Write((), job, done)


def _tell_ended(world: World, gains: Pod, ended: list[Pod]) -> None:
    for pod in ended:
        _tell(world, pod, Reason.PREEMPTED, _preempted(pod, gains))
    if ended:
        names = ", ".join(sorted({_named(pod, gains) for pod in ended}))
        message = f"of lower priority, and ended for it: {names}"
        _tell(world, gains, Reason.MAKING_ROOM, message)


def _is_of_budget(error: UnavailableError) -> bool:
    causes = error.details.get("causes") or ()
    return any(cause.get("reason") == _BUDGET for cause in causes)


def _why(error: Exception) -> str:
    if isinstance(error, ForbiddenError):
        return (
            f"{error}; grant the controller create on pods/eviction, and delete on pods for "
            "preemption (chart: defrag.enabled, preemption.enabled)"
        )
    return str(error)


def _preempted(pod: Pod, gains: Pod) -> str:
    return f"ended for {_named(gains, pod)}, of higher priority, which needs its slice"


def _named(pod: Pod, reader: Pod) -> str:
    """Name of ``pod`` in a message for ``reader``; hidden from pods of other namespaces."""
    return f"pod {pod}" if pod.key[0] == reader.key[0] else "a pod of another namespace"


def _tell(world: World, pod: Pod, reason: Reason, message: str) -> None:
    world.cluster.pod_index.record(pod).said.pop(reason.value, None)  # each step is told
    world.reporter.metrics.room_making(reason)
    world.reporter.on_pod(pod, "room is made", Obstacle(reason, message), warns=False)
