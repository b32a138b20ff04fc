"""Decisions on record, for ``kubectl mig replay``: the state, what was asked, what was chosen.

The deciding thread compares the fleet with what it told last, and queues lines; a thread writes
them. What goes wrong here is logged and costs lines, never a decision. Names of pods and namespaces
are left out unless asked for: numbers drawn anew for each leadership stand for them.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import Effects
from controller.options import Options
from controller.report.decision_file import DecisionFile, Entry
from dra.allocator.fleet import NodeGpus
from dra.allocator.fragmentation import charge
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.problem import Decision, Problem
from dra.claims.reasons import Reason
from dra.claims.wants import ClaimWants
from dra.gangs.membership import Unclear
from dra.gpu.geometry import Placement
from dra.gpu.holdings import occupant_of
from dra.gpu.inventory import Gpu, IdleInstance, Instance, InstanceState, Inventory
from dra.kube.timing import Clock, rfc3339
from dra.pods.nodefit import find_barrier
from dra.pods.pods import Pod, PodNeeds
from dra.replay import form

_log = logging.getLogger(__name__)

_NEEDS = 1024
"""Needs of pods of which it is kept where they cannot go."""

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Known:
    """A claim that holds devices, as it was told."""

    number: int
    node: str
    devices: tuple[form.Device, ...]


@dataclass(slots=True)
class _Open:
    """Something that was asked and is not placed; ``reason`` why it waits, as told last."""

    number: int
    asked: object
    claims: tuple[int, ...]
    reason: str = ""


class DecisionLog:
    """Keeper of a recording; ``now`` gives monotonic seconds. Of the deciding thread alone."""

    def __init__(
        self,
        cluster: Cluster,
        file: DecisionFile,
        *,
        now: Callable[[], float],
        begun: Callable[[], str],
        names: bool,
    ) -> None:
        """``begun`` gives the time of day (RFC 3339), ``names``: they are not left out."""
        self._cluster = cluster
        self._file = file
        self._now = now
        self._time_of_day = begun
        self._names = names
        self._salt = secrets.token_bytes(16)
        self._numbers = itertools.count()
        self._dropped = 0
        self._not_before: float | None = float("-inf")
        """None while it is recorded."""
        self._due: float | None = None
        self._forget_all()

    def _forget_all(self) -> None:
        self._began = self._now()
        self._last = 0
        self._observed = -1
        self._held: dict[str, _Known] = {}
        self._on: dict[str, set[str]] = {}
        self._nodes: dict[str, Inventory] = {}
        self._shapes: dict[bytes, int] = {}
        self._open: dict[str, _Open] = {}
        self._barred: dict[PodNeeds, tuple[str, ...]] = {}

    # -- what others tell

    @property
    def due(self) -> float | None:
        """The monotonic time at which changes are to be written."""
        if self._not_before is not None:
            return self._not_before
        return self._due if self._cluster.fleet.changed else None

    def note(self, effects: Effects) -> None:
        """Pods that waited may be gone."""
        if effects.nodes:
            self._barred.clear()
        for record in effects.gone_pods:
            if (asked := self._open.pop(record.pod.uid, None)) is not None:
                self._leave(asked)

    def work_if_due(self) -> bool:
        """Write what has changed; others need not wait for it."""
        due = self.due
        if due is not None and due <= self._now():
            self._guarded(self._note_state)
        return False

    def waits(self, pod: Pod, problem: Problem, reason: Reason) -> None:
        """A pod waits for what its ``problem`` lacks."""
        self._guarded(lambda: self._waits(pod, problem, reason))

    def placed(
        self,
        pod: Pod,
        claims: tuple[ClaimWants, ...],
        decision: Decision,
        *,
        passed: AbstractSet[str] = frozenset(),
        without: AbstractSet[str] = frozenset(),
    ) -> None:
        """Made before the ``decision`` counts. The pod did not fit on the nodes ``passed``.

        What is held back under the UIDs ``without`` did not bind it.
        """
        self._guarded(lambda: self._placed(pod, claims, decision, passed, without))

    # -- lines

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            if self._not_before is not None:
                if self._now() < self._not_before:
                    self._dropped += 1
                    return
                self._begin()
            act()
        except Exception:  # noqa: BLE001 - it may be anything, and no decision may fail for it
            _log.exception("decisions are not recorded for a while")
            self._rest()

    def _rest(self) -> None:
        self._dropped += 1
        self._not_before = self._now() + times.DECISION_LOG_AGAIN
        self._cluster.fleet.changed = None

    def _begin(self) -> None:
        """Tell the whole state."""
        self._forget_all()
        self._not_before = None
        fleet = self._cluster.fleet
        fleet.changed = {*fleet.nodes}
        header = form.Header(
            version=form.VERSION,
            driver=self._cluster.driver,
            begun=self._time_of_day(),
            dropped=self._dropped,
        )
        if not self._file.put(Entry(_line(header), begins=True)):
            self._rest()
            return
        self._dropped = 0
        self._note_state()
        self._put(form.Ready())

    def _put(self, line: form.Line, *, key: str = "", forget: Iterable[str] = ()) -> None:
        self._queue(Entry(_line(line), key, forget=tuple(forget)))

    def _queue(self, entry: Entry) -> None:
        if self._not_before is not None or not self._file.put(entry):
            self._rest()

    def _time(self) -> int:
        """Microseconds since the beginning, no two alike."""
        since = int((self._now() - self._began) * _MICROSECONDS)
        self._last = max(self._last + 1, since)
        return self._last

    def _named(self, name: str) -> str:
        if self._names:
            return name
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=6).hexdigest()

    # -- the state

    def _note_state(self) -> None:
        """Tell what has changed on the nodes since the last time."""
        fleet = self._cluster.fleet
        changed, fleet.changed = sorted(fleet.changed or ()), set()
        self._due = self._now() + times.DECISION_LOG_STATE
        for name in changed:
            self._note_node(name, fleet.nodes.get(name))
        if fleet.demand.observed != self._observed:
            self._observed = fleet.demand.observed
            self._put(form.DemandState(counts=fleet.demand.counts), key="demand")

    def _note_node(self, name: str, node: NodeGpus | None) -> None:
        for uid in [*self._on.get(name, ())]:
            if not self._cluster.fleet.counts(uid):
                self._end(uid)
        if node is not None:
            self._note_gpus(node)
            self._note_holders(name, node)
        elif self._nodes.pop(name, None) is not None:
            line = form.NodeState(t=self._time(), node=name)
            self._put(line, forget=[f"node/{name}"])

    def _note_gpus(self, node: NodeGpus) -> None:
        name, seen = node.inventory.node, self._seen(node)
        if seen != self._nodes.get(name):
            self._nodes[name] = seen
            mignode, shapes = form.split_inventory(seen)
            numbers = tuple(map(self._shape, shapes))
            line = form.NodeState(t=self._time(), node=name, mignode=mignode, shapes=numbers)
            self._put(line, key=f"node/{name}")

    def _note_holders(self, name: str, node: NodeGpus) -> None:
        found: dict[str, tuple[str, list[form.Device]]] = {}
        for state in node.gpus:
            for (uid, device), (ref, ask) in state.claims.items():
                found.setdefault(uid, (ref.namespace, []))[1].append((str(device), ask))
        for uid, (namespace, devices) in found.items():
            known = self._held.get(uid)
            if known is None or [d for d, _ in known.devices] != sorted(d for d, _ in devices):
                if known is not None:
                    self._end(uid)
                self._hold(uid, namespace, _Known(next(self._numbers), name, _sorted(devices)))

    def _hold(self, uid: str, namespace: str, known: _Known, *, asked: bool = False) -> None:
        """A claim holds devices; of one that ``asked`` only later files are told here."""
        self._held[uid] = known
        self._on.setdefault(known.node, set()).add(uid)
        line = form.Held(
            t=self._time(),
            claim=known.number,
            tenant=self._named(namespace),
            node=known.node,
            devices=known.devices,
            back=uid.startswith("next:"),
        )
        raw = _line(line)
        self._queue(Entry(b"" if asked else raw, f"held/{known.number}", raw))

    def _end(self, uid: str) -> None:
        known = self._held.pop(uid)
        self._on[known.node].discard(uid)
        line = form.Ended(t=self._time(), claim=known.number)
        self._put(line, forget=[f"held/{known.number}"])

    def _shape(self, shape: dict[str, object]) -> int:
        raw = msgspec.json.encode(shape)
        if raw not in self._shapes:
            self._shapes[raw] = number = len(self._shapes)
            self._put(form.Shape(number=number, geometry=shape), key=f"shape/{number}")
        return self._shapes[raw]

    def _seen(self, node: NodeGpus) -> Inventory:
        """A node as the allocator sees it, without what claims hold and what people read."""
        inventory = node.inventory
        return Inventory(
            inventory.node,
            inventory.pool,
            inventory.driver,
            tuple(map(self._seen_gpu, node.gpus)),
            driver_version=inventory.driver_version,
            cuda_driver_version=inventory.cuda_driver_version,
            capabilities=inventory.capabilities,
        )

    def _seen_gpu(self, state: GpuState) -> Gpu:
        gpu = state.gpu
        idle = (IdleInstance(i.placement, self._named(i.namespace), i.profile_id) for i in gpu.idle)
        return replace(
            gpu,
            mig_pending=gpu.mig_enabled,
            instances=tuple(_left(state)),
            unavailable="not given out" if state.blocked else "",
            reason="",
            idle=tuple(idle),
            layout=None,
            health=None,
        )

    # -- what is asked, and what comes of it

    def _waits(self, pod: Pod, problem: Problem, reason: Reason) -> None:
        asked = self._ask(pod, problem.claims)
        if asked.reason != reason:
            asked.reason = reason
            line = form.Waits(t=self._time(), ask=asked.number, reason=reason)
            self._put(line, key=f"waits/{asked.number}")

    def _placed(
        self,
        pod: Pod,
        claims: tuple[ClaimWants, ...],
        decision: Decision,
        passed: AbstractSet[str],
        without: AbstractSet[str],
    ) -> None:
        self._note_state()
        asked = self._ask(pod, claims)
        del self._open[pod.uid]
        numbers = {w.claim.ref.uid: n for w, n in zip(claims, asked.claims, strict=True)}
        for uid in numbers.keys() & self._held.keys():
            self._end(uid)
        picks = [p for p in decision.picks if not p.admin]
        line = form.Placed(
            t=self._time(),
            ask=asked.number,
            node=decision.node,
            devices=tuple((numbers[p.claim.uid], p.device) for p in picks),
            cost=charge(self._cluster.fleet, _slices(decision)),
            passed=tuple(sorted(passed)),
            without=tuple(self._held[u].number for u in sorted(without) if u in self._held),
        )
        self._put(line, forget=(f"ask/{asked.number}", f"waits/{asked.number}"))
        driver = self._cluster.driver
        for uid, number in numbers.items():
            ref = next(w.claim.ref for w in claims if w.claim.ref.uid == uid)
            devices = _sorted((d.device, d.ask) for d in decision.allocation(ref, driver).devices)
            if any(p.claim.uid == uid for p in picks):
                self._hold(uid, ref.namespace, _Known(number, decision.node, devices), asked=True)
        if self._cluster.fleet.changed is not None:
            self._cluster.fleet.changed.add(decision.node)  # it may not be written after all

    def _ask(self, pod: Pod, claims: tuple[ClaimWants, ...]) -> _Open:
        """The pod's question, as it was told, or is now."""
        asked = tuple((w.claim.ref.uid, w.choices, w.constraints) for w in claims)
        known = self._open.get(pod.uid)
        if known is not None and known.asked == asked:
            return known
        if known is not None:
            self._leave(known)
        numbers = tuple(next(self._numbers) for _ in claims)
        found = self._open[pod.uid] = _Open(next(self._numbers), asked, numbers)
        gang = self._cluster.gangs.find(pod.key)
        needs = self._cluster.gangs.minimum(gang) if gang is not None else 1
        line = form.Asked(
            t=self._time(),
            ask=found.number,
            pod=self._named("/".join(pod.key)),
            tenant=self._named(pod.key[0]),
            claims=tuple(
                form.AskedClaim(n, *form.anonymous(w.choices, w.constraints, w.sharing))
                for n, w in zip(numbers, claims, strict=True)
            ),
            barred=self._barred_to(pod),
            priority=pod.priority,
            gang=self._named(str(gang.key)) if gang is not None else "",
            needs=1 if isinstance(needs, Unclear) else needs,
        )
        self._put(line, key=f"ask/{found.number}")
        return found

    def _leave(self, asked: _Open) -> None:
        line = form.Left(t=self._time(), ask=asked.number)
        self._put(line, forget=(f"ask/{asked.number}", f"waits/{asked.number}"))

    def _barred_to(self, pod: Pod) -> tuple[str, ...]:
        """Nodes of GPUs that a pod cannot go to, by what they and it say."""
        if pod.node:
            return tuple(sorted(self._cluster.fleet.nodes.keys() - {pod.node}))
        known = self._barred.get(pod.needs)
        if known is None:
            if len(self._barred) >= _NEEDS:
                self._barred.clear()
            facts = self._cluster.hosts.facts
            known = self._barred[pod.needs] = tuple(
                name
                for name in sorted(self._cluster.fleet.nodes)
                if name in facts and find_barrier(pod.needs, facts[name]) is not None
            )
        return known


@contextmanager
def recording(cluster: Cluster, options: Options, clock: Clock) -> Iterator[DecisionLog | None]:
    """The recording of a leadership; None where none is asked for."""
    if options.decision_log is None:
        yield None
        return
    end = _line(form.Ready())
    size = options.decision_log_mib * 2**20
    file = DecisionFile(options.decision_log, size, end_of_state=end)
    try:
        yield DecisionLog(
            cluster,
            file,
            now=clock.monotonic,
            begun=lambda: rfc3339(clock.now()),
            names=options.decision_log_names,
        )
    finally:
        cluster.fleet.changed = None
        file.close()


def _line(line: form.Line) -> bytes:
    return form.encode(line) + b"\n"


def _sorted(devices: Iterable[form.Device]) -> tuple[form.Device, ...]:
    return tuple(sorted(devices, key=lambda device: device[0]))


def _slices(decision: Decision) -> Iterator[tuple[GpuId, str, Placement]]:
    for pick in decision.picks:
        if pick.placement is not None and pick.share is None:
            minor = int(pick.gpu.removeprefix("gpu-"))
            yield GpuId(decision.node, minor), pick.profile, pick.placement


def _left(state: GpuState) -> Iterator[Instance]:
    """Instances that no claim holds: those of claims that have ended are on their way out."""
    geometry = state.gpu.geometry
    held = {o.placement for _, d in state.claims if (o := occupant_of(d, geometry)) is not None}
    for instance in state.gpu.instances:
        if instance.placement not in held:
            is_leaving = instance.claim is not None
            how = InstanceState.RECLAIMING if is_leaving else InstanceState.FOREIGN
            yield Instance(instance.placement, how, instance.profile_id, instance.profile)
