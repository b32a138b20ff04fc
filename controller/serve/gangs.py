"""Rules for gangs: their pods are counted, allocated together, or give their slices back.

An allocation that is being written counts, except in counts that are to be ``certain``.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

from controller import times
from controller.cluster.gangs import Gang
from controller.cluster.records import GangRefusal, PodRecord
from controller.queue.line import Need, Waiter, gang_uid, gang_waiter
from controller.queue.refused import CouldServe
from controller.queue.searches import alike
from controller.serve.allocations import allocate, unwritten
from controller.serve.giving_back import Cause, Unused, give_up, unused_of
from controller.serve.placing import attempts, counts_already, suited, without_excluded
from controller.serve.steering import is_steered, steer, wait_for_turn
from controller.serve.world import Act, Look, Wait, World, Write
from dra.allocator.allocate import with_room_made
from dra.allocator.problem import Decision, Examined, Incomplete, Problem, examine
from dra.cel.offers import UnansweredError
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import (
    Count,
    GangDecision,
    GangOutcome,
    Lacking,
    Questions,
    Trial,
    about_absent,
    about_hindered,
    about_room,
    sort_out,
)
from dra.gangs.membership import Unclear
from dra.pods.pods import Pod, urgency

REST = 10
"""Rest after a decision for which there was no room, as a multiple of the time that it took."""

_MOST_EXAMINED = 1000
"""Upper bound on the pods of a gang that are examined: that takes a tenth of a second."""

_UNDER_WAY = Obstacle(
    Reason.WAITING_FOR_GANG, "an allocation is being written for it, or may have been"
)


def count_pods(world: World, gang: Gang, minimum: int, *, certain: bool = False) -> Count:
    """Count the pods of ``gang``; no more than ``minimum`` are counted as served."""
    found: list[ObjectKey] = []
    # Pods that were served at the last count go first: thousands of pods may each call this.
    known = [key for key in gang.served if key in gang.members]
    tried = frozenset(known)
    for key in chain(known, (key for key in gang.members if key not in tried)):
        if not lacks(world, world.cluster.pods[key], certain=certain):
            found.append(key)
            if len(found) >= minimum:
                break
    if not certain:
        gang.served = found
    return Count(minimum, gang.present, len(found))


def is_half(world: World, gang: Gang) -> bool:
    """True if fewer pods of ``gang`` than it needs have their slices for certain.

    False if the number that it needs is unclear, as it may have been clear before.
    """
    minimum = world.cluster.gangs.minimum(gang)
    if isinstance(minimum, Unclear) or minimum <= 1:
        return False
    return count_pods(world, gang, minimum, certain=True).need > 0


def lacks(world: World, pod: Pod, *, certain: bool = False) -> bool:
    """True if a claim of ``pod`` is still to be made, or allocated by us; False if it has ended."""
    # kube-scheduler allocates before it binds, whichever of the two is seen first.
    if not pod.live or pod.node in world.cluster.fleet.schedulers:
        return False
    if None in pod.claims.values():
        return True
    for key in pod.claim_keys:
        known = world.cluster.claims.get(key)
        if known is None:
            return True
        claim = known.claim
        had = claim.allocation is not None
        had = had or (not certain and world.cluster.fleet.counts(claim.ref.uid))
        if not had and world.reader.concerns(claim):
            return True
    return False


def find_lacking(world: World, gang: Gang) -> Lacking:
    """The pods of ``gang`` that lack something, the most urgent first."""
    pods = (world.cluster.pods[key] for key in gang.members)
    lacking = sorted((pod for pod in pods if lacks(world, pod)), key=urgency)
    free = (pod for pod in lacking if pod.pending and pod.key not in gang.gated)
    return sort_out(islice(free, _MOST_EXAMINED), partial(_examine, world))


def _examine(world: World, pod: Pod) -> Examined:
    found = examine(pod, world.cluster, world.reader)
    if isinstance(found.found, Problem) and counts_already(world, found.found):
        return Examined(Incomplete(), _UNDER_WAY)
    return found


def find_gang(world: World, pod: Pod) -> Gang | None:
    """The gang with which ``pod``, which lacks slices, is served; None if it is served alone.

    Pods beyond the number that a gang needs are served alone.
    """
    gang = world.cluster.gangs.find(pod.key)
    if gang is None:
        return None
    minimum = world.cluster.gangs.minimum(gang)
    if isinstance(minimum, Unclear):
        return gang
    if minimum > 1 and _is_fresh(world, gang):
        return gang
    if minimum <= 1 or count_pods(world, gang, minimum).need <= 0:
        _forget(world, gang)
        return None
    return gang


def place_gang(world: World, pod: Pod, gang: Gang) -> Iterator[Act]:
    """Allocate what ``gang`` lacks, or have ``pod``, which lacks slices, wait and say why.

    Raises the errors of ``GangDecision.go_on``.
    """
    world.line.waits_with_gang(pod)
    minimum = world.cluster.gangs.minimum(gang)
    if isinstance(minimum, Unclear):
        yield _leave(world, gang, _about(minimum.message))
        return
    if gang.present < minimum:
        yield _leave(world, gang, about_absent(gang.key, Count(minimum, gang.present, 0)))
        return
    refusal, look = _standing_refusal(world, pod, gang, minimum)
    if look is not None:
        yield look
    if refusal is not None:
        yield _refuse(world, gang, refusal)
        return
    yield from _try(world, pod, gang, minimum)


def holds_gate(world: World, pod: Pod) -> bool:
    """True if ``pod``, which has its slices, has to wait until enough of its gang have theirs."""
    gang = world.cluster.gangs.find(pod.key)
    return gang is not None and is_half(world, gang)


# -- giving back


def give_back_gang(world: World, gang: Gang) -> Iterator[Write]:
    """Give back the unused slices of ``gang``, as there is no room for its other pods."""
    for key in gang.members:
        pod = world.cluster.pods[key]
        if pod.pending and (unused := unused_of(world, pod)):
            if gang.half_since is None:
                gang.half_since = world.now()
            gang.gives_back = True
            for known, why in _of_gang(world, gang, unused):
                yield from give_up(world, known, why)


def half_gang(world: World, record: PodRecord, unused: Unused) -> Cause | None:
    """Cause: only some pods of a gang have slices, fewer than it needs.

    This happens when a write fails, kube-scheduler takes an allocation back, or a pod is deleted.
    Unused slices are given back after a while, or at once if there is no room for the other pods
    (``give_back_gang``).
    """
    gang = world.cluster.gangs.find(record.pod.key)
    if gang is None or not unused:
        return None
    if not is_half(world, gang):
        gang.half_since, gang.gives_back = None, False
        return None
    if gang.half_since is None:
        gang.half_since = world.now()
    if gang.gives_back:
        return Cause(world.now(), _of_gang(world, gang, unused))
    end = gang.half_since + times.GANG_HALF
    if world.now() < end:
        return Cause(end)
    if not gang.rest.left(world.now()):
        gang.rest.fail(world.now())
    gang.gives_back = True
    pods = (world.cluster.pods[key] for key in gang.members)
    whole = [each for pod in pods if pod.pending for each in unused_of(world, pod)]
    return Cause(end, _of_gang(world, gang, whole))


def _of_gang(world: World, gang: Gang, unused: Unused) -> Unused:
    """Those of ``unused`` that only pods of ``gang`` refer to, with the reason to give up."""
    why = f"not enough pods of {gang.key} have theirs"
    return [
        (known, why)
        for known, _ in unused
        if all(
            pod.key in gang.members
            for pod in world.cluster.pod_index.of_claim(known.claim.ref.key)
            if pod.live
        )
    ]


# -- refusals


def _is_fresh(world: World, gang: Gang) -> bool:
    """True if ``gang`` was refused lately, and rests or has not changed since.

    Then its pods need not be counted: it lacks slices.
    """
    refusal = gang.refusal
    if refusal is None:
        return False
    is_same = refusal.version == gang.version
    return world.now() < (refusal.until if is_same else refusal.rests_until)


def _standing_refusal(
    world: World, pod: Pod, gang: Gang, minimum: int
) -> tuple[GangRefusal | None, Look | None]:
    """The refusal that still stands when ``pod`` is looked at, None without; and a look, or None.

    The look is at one pod when the gang's rest is over. Pods that join do not end the rest.
    """
    refusal, now = gang.refusal, world.now()
    if refusal is None:
        return None, None
    is_same = refusal.version == gang.version
    if is_same and refusal.hindered is not None:
        refusal.hindered.discard(pod.key)
        if gang.present - len(refusal.hindered) >= minimum:
            return None, None
    if now < refusal.rests_until:
        if refusal.is_called:
            return refusal, None
        refusal.is_called = True
        return refusal, Look(refusal.rests_until)
    stands = is_same and world.refused.stands(refusal, _could_serve(world, refusal))
    return refusal if stands else None, None


def _could_serve(world: World, refusal: GangRefusal) -> CouldServe | None:
    failed = refusal.failed
    if failed is None or refusal.why.reason is Reason.QUOTA:
        return None
    allocator = world.line.allocator_for(failed.pod)
    return partial(allocator.could_serve, with_room_made(failed, allocator))


def _keep(world: World, pod: Pod, gang: Gang, refusal: GangRefusal, seconds: float) -> None:
    """Keep the refusal of ``gang``, found in a look at ``pod``; the decision took ``seconds``.

    If the reason is new, all its pods are looked at, to be told; otherwise those not waiting yet.
    """
    before, now = gang.refusal, world.now()
    refusal.version, refusal.rests_until = gang.version, now + REST * seconds
    refusal.at, refusal.until = now, now + times.REFUSAL_DETAILS
    gang.refusal = refusal
    is_new = before is None or before.why.reason is not refusal.why.reason
    for key in gang.members:
        if key != pod.key and (is_new or not world.agenda.waits(key)):
            world.agenda.add_pod(key)


def _refuse(world: World, gang: Gang, refusal: GangRefusal) -> Wait:
    """Have ``gang`` wait; slices are held back for it if it was overtaken too often."""
    if refusal.why.reason is not Reason.WAITING:
        return _leave(world, gang, refusal.why, refusal)
    uid, lacking, line = gang_uid(gang.key), refusal.lacking, world.line
    kind = gang.key if refusal.group is None else refusal.group
    was_held = line.is_held_for(uid)
    waiter = gang_waiter(gang.key, lacking, refusal.need)
    line.wait(waiter, Need(lacking, refusal.need, kind))
    is_held = line.is_held_for(uid)
    for key in gang.members if is_held and not was_held else ():
        world.agenda.add_pod(key)  # they are no longer in one group with other gangs
    return Wait(refusal.why, (), gang.key if is_held else refusal.group)


def _leave(
    world: World, gang: Gang, obstacle: Obstacle, refusal: GangRefusal | None = None
) -> Wait:
    """Have ``gang`` wait for something else than room; nothing is held back for it."""
    world.line.leaves(gang_uid(gang.key))
    return Wait(obstacle, (), refusal.group if refusal is not None else None)


def _forget(world: World, gang: Gang) -> None:
    gang.refusal = None
    world.decisions.forget(gang.key)
    world.line.leaves(gang_uid(gang.key))


def _about(message: str) -> Obstacle:
    return Obstacle(Reason.WAITING_FOR_GANG, message)


# -- decisions


def _try(world: World, pod: Pod, gang: Gang, minimum: int) -> Iterator[Act]:
    """Go on with the gang's decision, unless it is not its turn or the gang rests."""
    now = world.now()
    if world.decisions.is_ongoing(gang.key):
        yield Wait(_about(f"{gang.key} is being decided"))
        return
    if now < gang.rest.until:
        rests = _about(
            f"{gang.key} had slices for some of its pods only, for too long, and has given them "
            f"back: it is tried again {gang.rest.until - now:.0f} s later"
        )
        yield _leave(world, gang, rests)._replace(at=gang.rest.until)
        return
    due = max(world.gangs_rest_until, gang.write_pause.until)
    if now < due and not world.decisions.is_begun(gang.key):
        yield Look(due)
        return
    yield from _decide(world, pod, gang, minimum)


def _decide(world: World, pod: Pod, gang: Gang, minimum: int) -> Iterator[Act]:
    """Make a part of the decision; once it is made, write it or keep the refusal."""
    began = world.now()
    try:
        found = _part(world, pod, gang, minimum)
    except UnansweredError:
        world.decisions.forget(gang.key)
        raise
    except Exception:
        _forget(world, gang)
        raise
    took = world.now() - began
    world.gangs_rest_until = world.now() + took
    if isinstance(found, GangRefusal):
        _keep(world, pod, gang, found, took)
        if found.failed is not None:
            yield from give_back_gang(world, gang)
        yield _refuse(world, gang, found)
    elif isinstance(found, GangOutcome):
        sent = [p.problem.pod for p in found.placed if p.decision and is_steered(world, p.decision)]
        if sent and (turn := wait_for_turn(world, sent)) is not None:
            yield turn
            return
        yield from _write(world, gang, found)
        if all(placed.problem.pod.key != pod.key for placed in found.placed):
            world.agenda.add_pod(pod.key)  # the gang does not need it: it is served alone


def _part(world: World, pod: Pod, gang: Gang, minimum: int) -> GangOutcome | GangRefusal | None:
    count = count_pods(world, gang, minimum)
    lacking = find_lacking(world, gang)
    able = len(lacking.problems)
    if able < count.need:
        world.decisions.forget(gang.key)
        obstacle = about_hindered(gang.key, count, able, lacking.others)
        return GangRefusal(obstacle, world.now(), hindered={*lacking.others})
    claims = (w.claim.ref.uid for p in lacking.problems for w in p.claims)
    room = world.refused.room.version
    made = world.decisions.decide(
        gang.key,
        pod.key,
        asked=(gang.version, count.need, *claims),
        begin=partial(_begin, world, gang, lacking.problems, count.need),
    )
    if made is None:
        return None
    outcome = made.outcome
    if outcome.fits:
        gang.refusal, gang.gives_back = None, False
        if not count.served:
            gang.half_since = None
        return outcome
    kind = alike(outcome.failed) if outcome.failed is not None else None
    return GangRefusal(
        about_room(gang.key, count, outcome),
        world.now(),
        room=room if outcome.failed is not None else None,
        failed=outcome.failed,
        group=gang.key if kind is None else (count.need, kind),
        lacking=lacking.problems,
        need=count.need,
    )


def _begin(world: World, gang: Gang, problems: tuple[Problem, ...], need: int) -> GangDecision:
    cluster, line = world.cluster, world.line
    own = line.own_allocator_for if line.is_held_for(gang_uid(gang.key)) else None
    questions = Questions(line.allocator_for, partial(attempts, world), alike, own, preempts=True)
    posed = [without_excluded(world, p, suited(world, p)) for p in problems]
    trial = Trial(cluster.fleet, cluster.hosts, pods=len(posed))
    return GangDecision(posed, need, trial, questions)


# -- writes


def _write(world: World, gang: Gang, outcome: GangOutcome) -> Iterator[Write]:
    """Write the allocations of ``outcome``; gates are lifted when enough pods have theirs."""
    place = max(urgency(placed.problem.pod) for placed in outcome.placed)
    waiter = Waiter(gang_uid(gang.key), str(gang.key), place)
    failed: list[tuple[Pod, Decision]] = []

    def done(pod: Pod, decision: Decision, error: Exception | None) -> None:
        if error is not None:
            failed.append((pod, decision))
            places = ChainMap(*(unwritten(world, *each) for each in failed))
            world.line.keep(waiter, {**places})
        _written(world, gang, pod, error)

    for placed in outcome.placed:
        if placed.decision is not None:  # None: other pods of the gang bring all its claims
            pod, answered = placed.problem.pod, partial(done, placed.problem.pod, placed.decision)
            gang.writes += 1
            if is_steered(world, placed.decision):
                yield steer(world, pod, placed.decision, placed.rest.claims, answered)
                continue
            claims = placed.rest.claims
            yield allocate(world, pod, placed.decision, claims, answered, lifts_gate=False)


def _written(world: World, gang: Gang, pod: Pod, error: Exception | None) -> None:
    gang.writes -= 1
    if error is None:
        world.line.served(pod)
    # The gang is tried again after pauses that grow, once for all pods.
    elif not gang.write_pause.left(world.now()):
        gang.write_pause.fail(world.now())
    if not gang.writes:
        _all_written(world, pod)
    world.pod_answered(pod.key, error)


def _all_written(world: World, pod: Pod) -> None:
    """Look at the gang's pods that have their slices, to lift their gates or have them wait."""
    gang = world.cluster.gangs.find(pod.key)
    if gang is None:
        return
    if not is_half(world, gang):
        world.line.leaves(gang_uid(gang.key))
    for key in gang.members:
        if not lacks(world, world.cluster.pods[key]):
            world.agenda.add_pod(key)
