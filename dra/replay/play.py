"""Recorded questions, placed again: by another policy, or on other GPUs. Pure.

As long as all goes as it went, each pod is placed when it was, in the same state. From the first
difference on whoever waits is tried whenever room is made, the most urgent first, and keeps what it
gets for as long as it had it. Not played are CPU and memory of nodes, what pods prefer among nodes,
and those that kube-scheduler ended for others.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet, Holder
from dra.allocator.fragmentation import charge
from dra.allocator.gpustate import GpuId
from dra.allocator.problem import Decision, Problem
from dra.cel.kinds import Kinds
from dra.cel.questions import SelectorError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim
from dra.claims.reasons import Reason
from dra.claims.wants import ClaimWants
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, Inventory
from dra.gpu.names import MigDevice, gpu_name, parse_device
from dra.gpu.shares import Ask
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import PodNeeds, read_pod
from dra.pods.residents import Hosts
from dra.replay.form import (
    Asked,
    DemandState,
    Ended,
    Event,
    Held,
    Left,
    NodeState,
    Placed,
    Ready,
    Recording,
    Waits,
)
from dra.replay.setting import AS_IT_WAS, Gpus, Setting, without_leaving

Choose = Callable[[Allocator, Problem], Decision | None]


@dataclass(slots=True)
class Fate:
    """Fate of a recorded question; times as in a recording.

    ``waits``: it was not placed at once. ``placed`` and ``left`` are None where that never was.
    ``is_hindered``: it is not room that it waits for. Of a ``kind`` all find room, or none.
    """

    asked: Asked
    problem: Problem
    kind: int
    profiles: frozenset[str]
    waits: bool = False
    is_hindered: bool = True
    placed: int | None = None
    left: int | None = None
    node: str = ""
    devices: frozenset[tuple[int, str]] = frozenset()
    cost: float = 0.0


@dataclass(slots=True)
class Played:
    """Fates by number. ``stranded`` is the mean of free memory slices nobody waiting could use.

    These are on GPUs where none of the profiles could be made that are waited for. ``differs_at``
    is the time of the first difference, None without one; it was played until ``end``.
    """

    fates: dict[int, Fate] = field(default_factory=dict)
    stranded: float = 0.0
    differs_at: int | None = None
    end: int = 0


def play(
    recording: Recording,
    setting: Setting = AS_IT_WAS,
    *,
    kinds: Kinds,
    choose: Choose = Allocator.decide,
) -> Played:
    """``recording`` as it would have been.

    Raises:
        RecordingError: a node could not be, or its GPUs cannot have the layout.
    """
    return _Play(recording, setting, kinds, choose).run()


def as_recorded(recording: Recording, *, kinds: Kinds) -> Played:
    """``recording`` as it was. Raises as ``play``."""
    return _Play(recording, AS_IT_WAS, kinds, None).run()


class _Place(NamedTuple):
    """Place among those who wait: by priority, then as they came."""

    urgency: int
    t: int
    ask: int


def _place_of(asked: Asked) -> _Place:
    return _Place(-asked.priority, asked.t, asked.ask)


class _End(NamedTuple):
    t: int
    claim: int


class _Play:
    """One play; without ``choose`` all is placed where it was."""

    def __init__(
        self, recording: Recording, setting: Setting, kinds: Kinds, choose: Choose | None
    ) -> None:
        self._recording, self._setting, self._choose = recording, setting, choose
        self._fleet, self._hosts = Fleet(recording.header.driver, kinds), Hosts()
        self._allocator = Allocator(self._fleet, self._hosts)
        self._known = _Known(recording)
        self._gpus = Gpus(recording, setting)
        self._differs = choose is not None and (setting.has_other_gpus or self._known.is_made)
        self._played = Played(differs_at=0 if self._differs else None)
        self._kinds: dict[object, int] = {}
        self._profiles: dict[int, frozenset[str]] = {}
        self._waiting: dict[int, list[_Place]] = {}
        self._gangs: dict[str, list[Fate]] = {}
        self._ends: list[_End] = []
        self._held: dict[int, Held] = {}
        self._inventories: dict[str, Inventory] = {}
        self._now, self._area, self._stranded = 0, 0, 0

    def run(self) -> Played:
        for event in self._recording.state:
            self._now = self._now if isinstance(event, DemandState | Ready) else event.t
            self._take(event)
        begun = self._now
        if self._differs:
            self._retry()
        for event in self._recording.events:
            if not isinstance(event, DemandState | Ready):
                self._pass_time(event.t)
            self._take(event)
            self._stranded = self._count_stranded()
        self._played.end = self._now
        self._played.stranded = self._area / max(1, self._now - begun)
        return self._played

    def _pass_time(self, t: int) -> None:
        while self._ends and self._ends[0].t <= t:
            end = heapq.heappop(self._ends)
            self._move_to(end.t)
            self._release(end.claim)
            self._stranded = self._count_stranded()
        self._move_to(t)

    def _move_to(self, t: int) -> None:
        self._area += self._stranded * max(0, t - self._now)
        self._now = max(t, self._now)

    def _take(self, event: Event) -> None:
        match event:
            case NodeState():
                self._set_node(event)
            case DemandState():
                if not self._differs:
                    self._fleet.demand.restore(event.counts)
            case Asked():
                self._ask(event)
            case Waits() | Placed():
                self._look(event, self._played.fates[event.ask])
            case Left():
                self._leave(self._played.fates[event.ask])
            case Held():
                if not (event.back and self._differs):
                    self._held[event.claim] = event
                    holder = _ref(event.tenant, event.claim), event.allocation(self._fleet.driver)
                    self._fleet.hold(*holder)
            case Ended():
                self._end(event.claim)
            case _:
                pass

    # -- nodes

    def _set_node(self, line: NodeState) -> None:
        for name, inventory in self._gpus.of(line):
            if inventory is None:
                self._inventories.pop(name, None)
                self._fleet.drop_inventory(name)
                continue
            self._hosts.set_node(NodeFacts(name))
            self._inventories[name] = inventory
            self._fleet.set_inventory(without_leaving(inventory) if self._differs else inventory)
        if self._differs:
            self._retry()

    def _differ(self) -> None:
        """From now on nothing is as it was: nobody leaves who has not been there."""
        self._differs = True
        self._played.differs_at = self._now
        for inventory in self._inventories.values():
            self._fleet.set_inventory(without_leaving(inventory))
        for claim in [claim for claim, held in self._held.items() if held.back]:
            self._fleet.release(_uid(claim))

    # -- pods

    def _ask(self, asked: Asked) -> None:
        policy = self._setting.policy
        claims = tuple(_wants(asked, n, policy) for n in range(len(asked.claims)))
        metadata = {"namespace": asked.tenant, "name": str(asked.ask), "uid": str(asked.ask)}
        pod = replace(read_pod({"metadata": metadata, "spec": {}}), needs=PodNeeds())
        problem = Problem(pod, claims)
        alike = asked.gang or (
            tuple((c.choices, c.constraints and asked.ask) for c in claims),
            asked.barred,
            asked.tenant,
        )
        kind = self._kinds.setdefault(alike, len(self._kinds))
        if kind not in self._profiles:
            self._profiles[kind] = frozenset(_profiles(claims, self._fleet))
        fate = Fate(asked, problem, kind, self._profiles[kind])
        self._played.fates[asked.ask] = fate
        if asked.gang:
            self._gangs.setdefault(asked.gang, []).append(fate)

    def _set_hindered(self, fate: Fate, *, is_hindered: bool) -> None:
        """Have it wait for room, or not."""
        if fate.is_hindered is is_hindered:
            return
        fate.is_hindered, asked = is_hindered, fate.asked
        of_kind, entry = self._waiting.setdefault(fate.kind, []), _place_of(asked)
        if is_hindered:
            of_kind.remove(entry)
            if not of_kind:
                del self._waiting[fate.kind]
        else:
            insort(of_kind, entry)

    def _look(self, event: Waits | Placed, fate: Fate) -> None:
        if fate.placed is None:
            hindered = isinstance(event, Waits) and event.reason != Reason.WAITING
            self._set_hindered(fate, is_hindered=hindered)
        if isinstance(event, Placed) and fate.placed is None and not self._differs:
            self._place_again(event, fate)
        elif self._differs and fate.placed is None and not fate.is_hindered:
            self._try(fate)
        fate.waits = fate.waits or fate.placed is None

    def _place_again(self, event: Placed, fate: Fate) -> None:
        """Place it in the state in which it was placed."""
        devices = frozenset(event.devices)
        if self._choose is None:
            self._place(fate, event.node, devices)
            return
        allocator = self._allocator
        if event.without:
            allocator = allocator.on(self._fleet.without([_uid(c) for c in event.without]))
        barred = {*fate.asked.barred, *event.passed} - {event.node}
        decision = self._decide(allocator, fate, barred)
        if decision is not None:
            self._place(fate, decision.node, _devices(decision))
        if decision is None or (fate.node, fate.devices) != (event.node, devices):
            self._differ()
            self._retry()

    def _try(self, fate: Fate) -> bool:
        """Place it, and its gang, where there is room."""
        gang, allocator = [fate], self._allocator
        missing = 1
        if fate.asked.gang:
            same = self._gangs[fate.asked.gang]
            gang = [f for f in same if not f.is_hindered]
            missing = max(1, fate.asked.needs - sum(f.placed is not None for f in same))
        found: list[tuple[Fate, Decision]] = []
        for member in gang if len(gang) >= missing else ():
            decision = self._decide(allocator, member, member.asked.barred)
            if decision is not None:
                found.append((member, decision))
                holders = self._holders(member, decision.node, _devices(decision))
                supposed = allocator.fleet.without((), holding=holders) if len(gang) > 1 else None
                allocator = allocator.on(supposed) if supposed is not None else allocator
        if len(found) < missing:
            return False
        for member, decision in found:
            self._place(member, decision.node, _devices(decision))
        return True

    def _decide(self, allocator: Allocator, fate: Fate, barred: Collection[str]) -> Decision | None:
        excluded = dict.fromkeys(self._gpus.called(barred), "recorded") if barred else {}
        try:
            choose = self._choose or Allocator.decide
            return choose(allocator, replace(fate.problem, excluded=excluded))
        except SelectorError:
            return None

    def _place(self, fate: Fate, node: str, devices: frozenset[tuple[int, str]]) -> None:
        fate.placed, fate.node, fate.devices = self._now, node, devices
        self._set_hindered(fate, is_hindered=True)
        slices = [*_slices(self._fleet, node, devices)]
        fate.cost = charge(self._fleet, slices)
        for ref, allocation in self._holders(fate, node, devices):
            self._fleet.hold(ref, allocation)
        for _, profile, _ in slices if self._differs else ():
            self._fleet.demand.observe(profile)
        if self._known.placed.get(fate.asked.ask) == self._now and fate.asked.lasts is None:
            return  # it ends when it ended
        for claim in fate.asked.claims:
            lasts = self._known.lasts.get(claim.number, fate.asked.lasts)
            if lasts is not None:
                heapq.heappush(self._ends, _End(self._now + lasts, claim.number))

    def _holders(
        self, fate: Fate, node: str, devices: frozenset[tuple[int, str]]
    ) -> Iterator[Holder]:
        driver, asks = self._fleet.driver, dict(_asks(fate.problem))
        for claim in {number for number, _ in devices}:
            found = tuple(
                AllocatedDevice("", driver, "", name, ask=asks[claim])
                for number, name in sorted(devices)
                if number == claim
            )
            yield _ref(fate.asked.tenant, claim), Allocation(found, node)

    def _leave(self, fate: Fate) -> None:
        if fate.placed is None:
            fate.left = self._now
            self._set_hindered(fate, is_hindered=True)
        elif fate.asked.lasts is None:
            for claim in fate.asked.claims:
                self._release(claim.number)

    def _end(self, claim: int) -> None:
        ask = self._known.asks.get(claim)
        fate = self._played.fates.get(ask) if ask is not None else None
        if fate is None or fate.placed == self._known.placed.get(fate.asked.ask):
            self._held.pop(claim, None)
            self._release(claim)

    def _release(self, claim: int) -> None:
        if self._fleet.release(_uid(claim)) and self._differs:
            self._retry()

    def _retry(self) -> None:
        """Place those who wait, one of each kind after the other, the most urgent first."""
        heads = [(entries[0], kind) for kind, entries in self._waiting.items()]
        heapq.heapify(heads)
        while heads:
            entry, kind = heapq.heappop(heads)
            left = self._waiting.get(kind, ())
            if entry in left and not self._try(self._played.fates[entry.ask]):
                continue
            if left := self._waiting.get(kind, ()):
                heapq.heappush(heads, (left[0], kind))

    def _count_stranded(self) -> int:
        wanted = frozenset[str]().union(*(self._profiles[kind] for kind in self._waiting))
        total = 0
        for group in self._fleet.groups.values() if wanted else ():
            table = group.state.table
            if table is not None and group.state.takes_slices:
                geometry = table.geometry
                if not any(p.id in group.moves for p in geometry.profiles if p.name in wanted):
                    free = geometry.memory_slices - group.state.usage.mask.bit_count()
                    total += free * len(group.members)
        return total


class _Known:
    """By numbers: the claims' ``asks``, when these were ``placed``, how long a claim ``lasts``.

    ``is_made``: no controller has recorded it, so that it says how long what is asked lasts.
    """

    def __init__(self, recording: Recording) -> None:
        self.asks: dict[int, int] = {}
        self.placed: dict[int, int] = {}
        self.lasts: dict[int, int] = {}
        self.is_made = False
        for event in (*recording.state, *recording.events):
            match event:
                case Asked():
                    self.asks |= dict.fromkeys((c.number for c in event.claims), event.ask)
                    self.is_made = self.is_made or event.lasts is not None
                case Placed():
                    self.placed[event.ask] = event.t
                case Ended() if begun := self.placed.get(self.asks.get(event.claim, -1)):
                    self.lasts[event.claim] = event.t - begun
                case _:
                    pass


def _uid(claim: int) -> str:
    return f"claim-{claim}"


def _ref(tenant: str, claim: int) -> ClaimRef:
    return ClaimRef(tenant, str(claim), _uid(claim))


def _wants(asked: Asked, index: int, policy: str) -> ClaimWants:
    claim = asked.claims[index]
    ref = _ref(asked.tenant, claim.number)
    choices = claim.choices
    if policy:
        choices = tuple(tuple(replace(w, policy=policy) for w in each) for each in choices)
    bound = tuple(replace(c, claim_uid=ref.uid) for c in claim.constraints)
    return ClaimWants(Claim(ref, "", ()), choices, bound, {}, claim.sharing)


def _asks(problem: Problem) -> Iterator[tuple[int, Ask]]:
    for wants in problem.claims:
        yield int(wants.claim.ref.name), wants.wants[0].ask


def _profiles(claims: Sequence[ClaimWants], fleet: Fleet) -> Iterator[str]:
    """Names of the profiles that would serve one of the requests."""
    kinds = {group.state.kind for group in fleet.groups.values()}
    for want in (w for claim in claims for alternatives in claim.choices for w in alternatives):
        try:
            if fleet.kinds.tells_gpus_apart(want.expressions):
                continue
            offers = [o for k in kinds for o in fleet.kinds.match_kind(want.expressions, k).offers]
        except SelectorError:
            continue
        yield from (o.profile.name for o in offers if o.profile is not None)


def _devices(decision: Decision) -> frozenset[tuple[int, str]]:
    return frozenset((int(p.claim.name), p.device) for p in decision.picks if not p.admin)


def _slices(
    fleet: Fleet, node: str, devices: Iterable[tuple[int, str]]
) -> Iterator[tuple[GpuId, str, Placement]]:
    """Slices that one claim has, with their profiles."""
    for _, name in sorted(devices):
        device = parse_device(name)
        known = fleet.nodes.get(node)
        state = known.gpu(gpu_name(device.minor)) if known is not None else None
        if not isinstance(device, MigDevice) or device.shared or state is None:
            continue
        geometry = state.gpu.geometry
        profile = geometry.by_id(device.profile_id) if geometry is not None else None
        for placement in profile.placements if profile is not None else ():
            if placement.start == device.start and profile is not None:
                yield GpuId(node, device.minor), profile.name, placement
