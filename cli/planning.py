"""Room for slices of a profile: where they would go, or what would have to move for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from cli.explaining.judge import Judge
from cli.facts import ClusterFacts
from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet, Holder
from dra.allocator.fragmentation import rooms
from dra.allocator.gpustate import GpuId
from dra.allocator.planner import Mover, Step, find_plan
from dra.allocator.problem import Problem, pose_problem
from dra.allocator.score import sws
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, read_claim
from dra.claims.classes import no_such_class
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, at
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DeviceNameError, MigDevice, class_name, mig_device, parse_device
from dra.pods.pods import Pod, read_pod
from dra.pods.rules import find_rules


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps that give ``number`` slices room: moves of the pods ``movers`` first.

    ``steps`` is empty where nothing does; ``bounded``: not all was searched. ``cost`` is what the
    new slices cost the rest of the cluster by the default policy, in expected memory slices.
    ``room`` is, by profile, how many slices of it alone could be made before and afterwards.
    """

    steps: tuple[Step, ...]
    movers: Mapping[str, Pod]
    cost: float
    room: Mapping[str, tuple[int, int]]
    bounded: bool = False


def forecast(facts: ClusterFacts, judge: Judge, profile: str, number: int) -> Forecast | Obstacle:
    """Room for ``number`` pods with a slice each, which may run on every node without a taint."""
    claim = _claim(profile)
    read = judge.read([claim])
    if read.faults:
        return read.faults[0].obstacle
    if not read.wants:  # kube-scheduler's: a class that is not there, or not this driver's alone
        missing = judge.reader.missing_class(claim.claim)
        shared = f"DeviceClass {class_name(profile)!r} selects devices of others, too"
        return Obstacle(Reason.NO_SUCH_CLASS, no_such_class(missing, ()) if missing else shared)
    pod = read_pod({"metadata": claim.obj["metadata"], "spec": {}})
    posed = pose_problem(pod, read, facts.hosts)
    if not isinstance(posed, Problem):
        return posed.obstacle
    allocator = judge.allocator
    steps = _as_things_are(allocator, posed, number)
    movers, bounded = dict(_movers(facts, allocator.fleet)), False
    if not steps:
        may_go = _Nodes(facts, allocator, posed, {m.uid: p for m, p in movers.items()})
        found = find_plan(allocator.fleet, [profile] * number, movers, may_go=may_go.fit)
        bounded, steps = found.bounded, found.plan.steps if found.plan is not None else ()
    moved = {s.mover.uid for s in steps if s.mover is not None}
    pods = {mover.uid: pod for mover, pod in movers.items() if mover.uid in moved}
    held = [_holder(step, index, allocator.fleet) for index, step in enumerate(steps)]
    after = allocator.fleet.without([*moved], holding=held)
    rooms = {name: (n, _room(after)[name]) for name, n in _room(allocator.fleet).items()}
    return Forecast(steps, pods, _cost(allocator.fleet, steps), rooms, bounded)


def _claim(profile: str) -> KnownClaim:
    request = {"name": "r", "exactly": {"deviceClassName": class_name(profile)}}
    metadata = {"namespace": "", "name": "planned", "uid": "planned"}
    obj: Obj = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    return KnownClaim(read_claim(obj), obj)


def _as_things_are(allocator: Allocator, problem: Problem, number: int) -> tuple[Step, ...]:
    """The slices that the controller would give; none unless there is room for all."""
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


def _movers(facts: ClusterFacts, fleet: Fleet) -> Iterator[tuple[Mover, Pod]]:
    """Claims of one slice with the one pod that uses them, of which another is made if it ends."""
    for key, known in facts.claims.items():
        pods = facts.pods_of(key)
        slice_ = _only_slice(known.claim, facts.driver)
        if slice_ is None or len(pods) != 1 or not _comes_back(pods[0]):
            continue
        node, device = slice_
        gpu = GpuId(node, device.minor)
        state = fleet.nodes[node].gpu(device.gpu) if node in fleet.nodes else None
        held = (h for h in state.holdings if h.claim_uid == known.claim.ref.uid) if state else ()
        occupant = next((h.occupant for h in held), None)
        geometry = state.gpu.geometry if state is not None else None
        profile = geometry.by_id(device.profile_id) if geometry is not None else None
        if occupant is not None and profile is not None:
            since = datetime.fromisoformat(pods[0].created).timestamp()
            yield Mover(known.claim.ref.uid, gpu, profile.name, occupant, since), pods[0]


def _only_slice(claim: Claim, driver: str) -> tuple[str, MigDevice] | None:
    """Node and slice of a claim that has nothing else."""
    devices = claim.allocation.devices if claim.allocation is not None else ()
    if claim.allocation is None or len(devices) != 1 or devices[0].driver != driver:
        return None
    try:
        device = parse_device(devices[0].device)
    except DeviceNameError:
        return None
    is_own = isinstance(device, MigDevice) and not device.shared and not devices[0].admin_access
    return (claim.allocation.node, device) if is_own and isinstance(device, MigDevice) else None


def _comes_back(pod: Pod) -> bool:
    """True if a controller makes another pod in its place, which may go to any node."""
    owners = at(pod.obj, "metadata", "ownerReferences", default=[])
    return any(o.get("controller") and o.get("kind") != "DaemonSet" for o in owners)


class _Nodes:
    """Nodes on which those who move, and who asks, could run."""

    def __init__(
        self,
        facts: ClusterFacts,
        allocator: Allocator,
        asked: Problem,
        pods: Mapping[str, Pod],
    ) -> None:
        self._facts, self._allocator = facts, allocator
        self._problems: dict[str, Problem] = {"": asked}
        self._pods = pods
        self._known: dict[tuple[str, str], bool] = {}

    def fit(self, mover: Mover | None, gpu: GpuId) -> bool:
        """True if the pod could run on the GPU's node, whatever its GPUs."""
        uid = mover.uid if mover is not None else ""
        if uid not in self._problems:
            pod = replace(self._pods[uid], node="")
            self._problems[uid] = Problem(pod, (), rules=find_rules(pod, self._facts.hosts))
        key = (uid, gpu.node)
        if key not in self._known:
            misfit = self._allocator.find_misfit(self._problems[uid], gpu.node)
            self._known[key] = misfit is None
        return self._known[key]


def _holder(step: Step, index: int, fleet: Fleet) -> Holder:
    """A step as what a claim holds: the mover's, or one of those that are asked for."""
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
    """Sum of what the policy charges for the slices that are asked for, when their turn comes."""
    total, supposed = 0.0, fleet
    for index, step in enumerate(steps):
        left = [step.mover.uid] if step.mover is not None else []
        supposed = supposed.without(left)
        state = supposed.state(step.gpu)
        profile = state.table.geometry.by_name(step.profile) if state.table is not None else None
        if step.mover is None and state.table is not None and profile is not None:
            moves = state.table.moves(state.usage, profile)
            move = next(m for m in moves if m.placement == step.occupant.placement)
            total += sws(state.situation(supposed.weights(state.table)), move)[0]
        supposed = supposed.without((), holding=[_holder(step, index, fleet)])
    return total
