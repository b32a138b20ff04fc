"""Recorded questions, placed again: by another policy, or on other GPUs. Pure.

As long as everything goes as recorded, each pod is placed when it was, in the same state. After the
first difference, pods that wait are tried whenever room is made, the most urgent first, and each
keeps what it gets for as long as it had it in the recording. Not played are CPU and memory of
nodes, the nodes that pods prefer, and pods that kube-scheduler ended for others.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet
from dra.allocator.fragmentation import charge_of, rooms
from dra.allocator.gpustate import Holder
from dra.allocator.moves import TooManyStatesError
from dra.allocator.problem import Decision, Problem
from dra.cel.kinds import Kinds
from dra.cel.questions import SelectorError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, Request
from dra.claims.wants import ClaimWants
from dra.gpu.inventory import ClaimRef, Inventory
from dra.gpu.names import DeviceNameError
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
    QuotaState,
    Ready,
    Recording,
    RecordingError,
)
from dra.replay.setting import AS_IT_WAS, Gpus, Setting, without_leaving

Choose = Callable[[Allocator, Problem], Decision | None]


@dataclass(slots=True)
class Fate:
    """Fate of a recorded question; times as in a recording.

    ``placed`` and ``left``: None where that never happened. ``kind``: equal for questions of which
    all find room, or none. ``cost``: charge of the default policy, in memory slices.
    """

    asked: Asked
    problem: Problem
    kind: object
    placed: int | None = None
    left: int | None = None
    node: str = ""
    devices: frozenset[tuple[int, str]] = frozenset()
    cost: float = 0.0

    @property
    def waits(self) -> bool:
        """True if the pod was not placed at once."""
        return self.placed != self.asked.t


@dataclass(slots=True)
class Played:
    """Result of a play. ``fates``: by the number of the question.

    ``stranded``: stranded memory slices (see ``ProductRoom``) while pods wait, as a mean over time.
    ``differs_at``: time of the first difference, None without one. ``end``: time of the last event.
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
    """``recording`` as it would have gone in ``setting``.

    Raises:
        RecordingError: a recorded node is not possible, or its GPUs cannot have the layout.
    """
    return _Play(recording, setting, kinds, choose).run()


def as_recorded(recording: Recording, *, kinds: Kinds) -> Played:
    """``recording`` as it went. Raises as ``play``."""
    return _Play(recording, AS_IT_WAS, kinds, None).run()


class _Play:
    """One play; without ``choose`` every pod is placed where it was."""

    def __init__(
        self, recording: Recording, setting: Setting, kinds: Kinds, choose: Choose | None
    ) -> None:
        self._recording, self._setting, self._choose = recording, setting, choose
        self._fleet, self._hosts = Fleet(recording.header.driver, kinds), Hosts()
        self._allocator = Allocator(self._fleet, self._hosts)
        self._gpus = Gpus(recording, setting)
        events = (*recording.state, *recording.events)
        self._asks = {c.number: e for e in events if isinstance(e, Asked) for c in e.claims}
        self._held_ever = {e.claim for e in events if isinstance(e, Held)}
        self._was_placed = {e.ask: e.t for e in events if isinstance(e, Placed)}
        self._lasts = {
            e.claim: e.t - self._was_placed[self._asks[e.claim].ask]
            for e in events
            if isinstance(e, Ended) and e.claim in self._asks
            if self._asks[e.claim].ask in self._was_placed
        }
        # Only a recording that no controller wrote says how long its pods last.
        is_made = any(asked.lasts is not None for asked in self._asks.values())
        self._differs = choose is not None and (setting.has_other_gpus or is_made)
        self._played = Played(differs_at=0 if self._differs else None)
        self._waiting: list[tuple[int, int, int]] = []
        """Questions that wait: negative priority, time and number, in this order."""
        self._gangs: dict[str, list[Fate]] = {}
        self._ends: list[tuple[int, int]] = []
        """Times, with the claims that end."""
        self._held: dict[int, Held] = {}
        self._inventories: dict[str, Inventory] = {}
        self._now, self._area, self._stranded = 0, 0.0, 0.0

    def run(self) -> Played:
        state, events = self._recording.state, self._recording.events
        begun = 0
        for number, event in enumerate((*state, *events)):
            is_state = number < len(state)
            if not isinstance(event, DemandState | QuotaState | Ready):
                self._pass_time(event.t)
                begun = event.t if is_state else begun
            try:
                self._take(event, is_state=is_state)
            except (LookupError, DeviceNameError, TooManyStatesError) as error:
                line = number + 2 + (not is_state)
                raise RecordingError(f"line {line}: {error}: use an undamaged copy") from error
            if number == len(state) - 1 and self._differs:
                self._retry()
            if is_state:
                self._area = 0.0
            self._stranded = self._count_stranded()
        self._played.end = self._now
        self._played.stranded = self._area / max(1, self._now - begun)
        return self._played

    def _pass_time(self, t: int) -> None:
        while self._ends and self._ends[0][0] <= t:
            at, claim = heapq.heappop(self._ends)
            self._move_to(at)
            self._release(claim)
            self._stranded = self._count_stranded()
        self._move_to(t)

    def _move_to(self, t: int) -> None:
        self._area += self._stranded * max(0, t - self._now)
        self._now = max(t, self._now)

    def _take(self, event: Event, *, is_state: bool) -> None:  # noqa: C901 - a case a line
        match event:
            case NodeState():
                self._set_node(event)
            case DemandState():
                if not self._differs:
                    self._fleet.demand.restore(event.counts)
            case QuotaState():
                for name in {*self._fleet.quotas.limits, *event.limits}:
                    self._fleet.limit(name, event.limits.get(name))
            case Asked():
                self._ask(event, tries=self._differs and not is_state)
            case Placed():
                self._place_again(event, self._played.fates[event.ask])
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
        """Go on as after the first difference: what only the recording explains is taken away.

        Instances that were being reclaimed and what was held back do not belong to this play.
        """
        self._differs = True
        self._played.differs_at = self._now
        for inventory in self._inventories.values():
            self._fleet.set_inventory(without_leaving(inventory))
        for claim in [claim for claim, held in self._held.items() if held.back]:
            self._fleet.release(_uid(claim))

    # -- pods

    def _ask(self, asked: Asked, *, tries: bool) -> None:
        policy = self._setting.policy
        claims = tuple(_wants(asked, n, policy) for n in range(len(asked.claims)))
        metadata = {"namespace": asked.tenant, "name": str(asked.ask), "uid": str(asked.ask)}
        pod = replace(read_pod({"metadata": metadata, "spec": {}}), needs=PodNeeds())
        choices = tuple((c.choices, c.constraints and asked.ask) for c in claims)
        kind = asked.gang or (choices, asked.barred, asked.tenant)
        fate = Fate(asked, Problem(pod, claims), kind)
        self._played.fates[asked.ask] = fate
        insort(self._waiting, _place_of(asked))
        if asked.gang:
            self._gangs.setdefault(asked.gang, []).append(fate)
        if tries:
            self._try(fate)

    def _waits_no_more(self, fate: Fate) -> None:
        if (place := _place_of(fate.asked)) in self._waiting:
            self._waiting.remove(place)

    def _place_again(self, event: Placed, fate: Fate) -> None:
        """Place the pod of a recorded placement, in the state in which it was placed."""
        devices = frozenset(event.devices)
        if self._choose is None:
            self._place(fate, event.node, devices, self._recorded(event, fate))
        if self._choose is None or self._differs:
            return
        allocator = self._allocator
        if event.without:
            allocator = allocator.on(self._fleet.without([_uid(c) for c in event.without]))
        barred = {*fate.asked.barred, *event.passed} - {event.node}
        decision = self._decide(allocator, fate, barred)
        if decision is not None:
            self._place_by(decision, fate)
        if decision is None or (fate.node, fate.devices) != (event.node, devices):
            self._differ()
            self._retry()

    def _try(self, fate: Fate) -> bool:
        """Place a pod, and its gang, where there is room; returns False if there is none."""
        gang, allocator = [fate], self._allocator
        missing = 1
        if fate.asked.gang:
            same = self._gangs[fate.asked.gang]
            gang = [f for f in same if f.placed is None and f.left is None]
            missing = max(1, fate.asked.needs - sum(f.placed is not None for f in same))
        found: list[tuple[Fate, Decision]] = []
        for member in gang if len(gang) >= missing else ():
            decision = self._decide(allocator, member, member.asked.barred)
            if decision is not None:
                found.append((member, decision))
                holders = self._holders(decision, member)
                supposed = allocator.fleet.without((), holding=holders) if len(gang) > 1 else None
                allocator = allocator.on(supposed) if supposed is not None else allocator
        if len(found) < missing:
            return False
        for member, decision in found:
            self._place_by(decision, member)
        return True

    def _decide(self, allocator: Allocator, fate: Fate, barred: Collection[str]) -> Decision | None:
        excluded = dict.fromkeys(self._gpus.called(barred), "recorded") if barred else {}
        try:
            choose = self._choose or Allocator.decide
            return choose(allocator, replace(fate.problem, excluded=excluded))
        except SelectorError:
            return None

    def _place_by(self, decision: Decision, fate: Fate) -> None:
        self._place(fate, decision.node, _devices(decision), self._holders(decision, fate))

    def _place(
        self,
        fate: Fate,
        node: str,
        devices: frozenset[tuple[int, str]],
        holders: Iterable[Holder],
    ) -> None:
        fate.placed, fate.node, fate.devices = self._now, node, devices
        self._waits_no_more(fate)
        fate.cost = charge_of(self._fleet, node, (device for _, device in devices))
        for ref, allocation in holders:
            self._fleet.hold(ref, allocation)
            for profile in self._fleet.profiles_in(allocation) if self._differs else ():
                self._fleet.demand.observe(profile)
        asked = fate.asked
        if self._was_placed.get(asked.ask) == self._now and asked.lasts is None:
            return  # it ends by the recording's own line
        for claim in asked.claims:
            lasts = self._lasts.get(claim.number, asked.lasts)
            if lasts is not None:
                heapq.heappush(self._ends, (self._now + lasts, claim.number))

    def _holders(self, decision: Decision, fate: Fate) -> list[Holder]:
        found = decision.allocations(fate.problem.claims, self._fleet.driver)
        return [(ref, allocation) for ref, allocation in found.items() if allocation.devices]

    def _recorded(self, event: Placed, fate: Fate) -> Iterator[Holder]:
        driver, asks = self._fleet.driver, dict(_asks(fate.problem))
        for claim in {number for number, _ in event.devices}:
            found = tuple(
                AllocatedDevice("", driver, "", name, ask=asks[claim])
                for number, name in sorted(event.devices)
                if number == claim
            )
            yield _ref(fate.asked.tenant, claim), Allocation(found, event.node)

    def _leave(self, fate: Fate) -> None:
        if fate.placed is None:
            fate.left = self._now
            self._waits_no_more(fate)
        elif fate.asked.lasts is None:
            for claim in fate.asked.claims:
                self._release(claim.number)

    def _end(self, claim: int) -> None:
        asked = self._asks.get(claim)
        if asked is None and claim not in self._held_ever:
            raise LookupError(f"claim {claim} is not known before it")
        fate = self._played.fates.get(asked.ask) if asked is not None else None
        if fate is None or fate.placed == self._was_placed.get(fate.asked.ask):
            self._held.pop(claim, None)
            self._release(claim)

    def _release(self, claim: int) -> None:
        if self._fleet.release(_uid(claim)) and self._differs:
            self._retry()

    def _retry(self) -> None:
        """Place pods that wait, the most urgent first; each ``kind`` until one has no room."""
        in_vain = set[object]()
        for _, _, ask in [*self._waiting]:
            fate = self._played.fates[ask]
            if fate.placed is None and fate.kind not in in_vain and not self._try(fate):
                in_vain.add(fate.kind)

    def _count_stranded(self) -> float:
        if not self._waiting:
            return 0.0
        return sum(room.stranded for room in rooms(self._fleet).values())


def _place_of(asked: Asked) -> tuple[int, int, int]:
    return -asked.priority, asked.t, asked.ask


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
    requests = tuple(Request(w.request, w.class_name) for each in choices for w in each)
    return ClaimWants(Claim(ref, "", requests), choices, bound, {}, claim.sharing)


def _asks(problem: Problem) -> Iterator[tuple[int, Ask]]:
    for wants in problem.claims:
        yield int(wants.claim.ref.name), wants.wants[0].ask


def _devices(decision: Decision) -> frozenset[tuple[int, str]]:
    return frozenset((int(p.claim.name), p.device) for p in decision.picks if not p.admin)
