"""Forecast of slices of a profile: where they would go, and what would have to move. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cli.explaining.judge import Judge
from cli.facts import ClusterFacts
from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet
from dra.allocator.fragmentation import charge, rooms
from dra.allocator.gpustate import GpuId, Holder
from dra.allocator.movers import Destinations, Leave, find_asked, movers_on
from dra.allocator.planner import Step, find_plan
from dra.allocator.problem import Problem, pose_problem
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, read_claim
from dra.claims.classes import no_such_class
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, ObjectKey
from dra.gangs.membership import GangKey, read_membership
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import MigDevice, class_name, finalizer, mig_device, parse_device
from dra.pods.pods import Pod, read_pod, urgency


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps that make room for slices: first moves of pods, then the slices.

    ``steps``: empty where nothing makes room. ``movers``: by claim UID, the pods that move.
    ``cost``: what the new slices cost the rest of the cluster by the default policy, in expected
    memory slices. ``room``: by profile, the slices of it alone that could be made before and
    afterwards. ``profile``: that of the slices. ``bounded``: not all was searched.
    """

    steps: tuple[Step, ...]
    movers: Mapping[str, Pod]
    cost: float
    room: Mapping[str, tuple[int, int]]
    profile: str
    bounded: bool = False


def forecast(facts: ClusterFacts, judge: Judge, profile: str, number: int) -> Forecast | Obstacle:
    """Forecast for ``number`` gated pods with a slice each, which may run on all untainted nodes.

    ``profile``: a profile, or the name of a class.
    """
    wanted = profile if profile in facts.classes else class_name(profile)
    claim = _claim(wanted)
    read = judge.read([claim])
    if read.faults:
        return read.faults[0].obstacle
    if not read.wants:  # kube-scheduler's: a class that is not there, or not this driver's alone
        missing = judge.reader.missing_class(claim.claim)
        shared = f"DeviceClass {wanted!r} selects devices of others, too"
        return Obstacle(Reason.NO_SUCH_CLASS, no_such_class(missing, ()) if missing else shared)
    gated = {"schedulingGates": [{"name": finalizer(facts.driver)}]}
    pod = read_pod({"metadata": claim.obj["metadata"], "spec": gated})
    posed = pose_problem(pod, read, facts.hosts)
    if not isinstance(posed, Problem):
        return posed.obstacle
    asked = find_asked(posed, judge.allocator.fleet)
    if asked is None:
        text = f"DeviceClass {wanted!r} gives no slice of a GPU of this cluster"
        return Obstacle(Reason.NO_SUCH_PROFILE, text)
    return find_room(facts, judge.allocator, posed, asked.profile, number)


def find_room(  # noqa: PLR0913 - who asks, for what, and who may move
    facts: ClusterFacts,
    allocator: Allocator,
    posed: Problem,
    profile: str,
    number: int,
    *,
    may_move: Callable[[Pod], bool] = lambda _: True,
) -> Forecast:
    """Forecast for ``number`` slices for a problem, by moves of pods that ``may_move``."""
    steps = _as_things_are(allocator, posed, number)
    movers, bounded = dict[str, Pod](), False
    if not steps:
        find = partial(_find, facts, {k.claim.ref.uid: key for key, k in facts.claims.items()})
        leave = Leave(may_move)
        states = (state for node in allocator.fleet.nodes.values() for state in node.gpus)
        every = (m for s in states for m in movers_on(s, find, facts.driver, leave))
        may_go = Destinations(allocator, posed, find).suits
        known = [m for m in every if m.stays]
        found = find_plan(allocator.fleet, [profile] * number, known, may_go=may_go)
        bounded, steps = found.bounded, found.plan.steps if found.plan is not None else ()
        moved = [step.mover.uid for step in steps if step.mover is not None]
        movers = {uid: pods[0] for uid in moved if (pods := (find(uid) or (None, []))[1])}
    held = [_holder(step, index, allocator.fleet) for index, step in enumerate(steps)]
    after = allocator.fleet.without([*movers], holding=held, unprepared=True)
    left = _room(after)
    room = {name: (now, left[name]) for name, now in _room(allocator.fleet).items()}
    return Forecast(steps, movers, _cost(allocator.fleet, steps), room, profile, bounded)


def _find(
    facts: ClusterFacts, keys: Mapping[str, ObjectKey], uid: str
) -> tuple[Claim, list[Pod]] | None:
    key = keys.get(uid)
    return (facts.claims[key].claim, facts.pods_of(key)) if key is not None else None


def first_in_line(
    facts: ClusterFacts, judge: Judge, profile: str, pod: ObjectKey | None
) -> tuple[Pod, Problem] | None:
    """The most urgent pod that waits for a slice of the profile alone, or ``pod`` if it does.

    A pod that waits for its gang as well is left out: the controller moves nobody for a gang.
    """
    hindered: dict[GangKey, bool] = {}
    waiting = [p for p in facts.pods.values() if p.pending and not p.node and p.claim_keys]
    for each in sorted(waiting, key=urgency):
        if pod not in (None, each.key):
            continue
        known = [facts.claims[key] for key in each.claim_keys if key in facts.claims]
        if len(known) < len(each.claims) or any(k.claim.allocation for k in known):
            continue
        posed = judge.examine(each).found
        asked = find_asked(posed, judge.allocator.fleet) if isinstance(posed, Problem) else None
        if asked is None or asked.profile != profile or not isinstance(posed, Problem):
            continue
        if (membership := read_membership(each.obj)) is not None:
            if membership.gang not in hindered:
                hindered[membership.gang] = judge.gang_obstacle(each) is not None
            if hindered[membership.gang]:
                continue
        return each, posed
    return None


def _claim(device_class: str) -> KnownClaim:
    request = {"name": "r", "exactly": {"deviceClassName": device_class}}
    metadata = {"namespace": "", "name": "planned", "uid": "planned"}
    obj: Obj = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    return KnownClaim(read_claim(obj), obj)


def _as_things_are(allocator: Allocator, problem: Problem, number: int) -> tuple[Step, ...]:
    """The slices that the controller would give now; none unless there is room for all."""
    steps = list[Step]()
    for index in range(number):
        decision = allocator.decide(problem)
        if decision is None:
            return ()
        [pick] = decision.picks
        device = parse_device(pick.device)
        if not isinstance(device, MigDevice) or pick.placement is None:
            return ()
        gpu = GpuId(decision.node, device.minor)
        steps.append(Step(None, gpu, pick.profile, Occupant(pick.placement, device.profile_id)))
        held = [_holder(steps[-1], index, allocator.fleet)]
        allocator = allocator.on(allocator.fleet.without((), holding=held))
    return tuple(steps)


def _holder(step: Step, index: int, fleet: Fleet) -> Holder:
    """The slice of a step as held by a claim: the mover's, or a supposed one that asks."""
    profile_id, start = step.occupant.profile_id, step.occupant.placement.start
    device = mig_device(step.gpu.minor, step.profile, profile_id=profile_id or 0, start=start)
    uid = step.mover.uid if step.mover is not None else f"planned-{index}"
    pool = fleet.nodes[step.gpu.node].inventory.pool
    allocated = AllocatedDevice("r", fleet.driver, pool, str(device))
    return ClaimRef("", uid, uid), Allocation((allocated,), step.gpu.node)


def _room(fleet: Fleet) -> Mapping[str, int]:
    """By profile the most slices of it alone that could be made now."""
    found: Counter[str] = Counter()
    for room in rooms(fleet).values():
        found.update(room.placeable)
    return found


def _cost(fleet: Fleet, steps: tuple[Step, ...]) -> float:
    """Sum of the default policy's charges for the slices that are asked for, each at its turn."""
    total, supposed = 0.0, fleet
    for index, step in enumerate(steps):
        left = [step.mover.uid] if step.mover is not None else []
        supposed = supposed.without(left, unprepared=True)
        if step.mover is None:
            total += charge(supposed, [(step.gpu, step.profile, step.occupant.placement)])
        supposed = supposed.without((), holding=[_holder(step, index, fleet)])
    return total
