"""Options: what one GPU could give, with its cost.

A GPU gives itself whole, slices, or shares: of itself, or of slices that are there or could be
made. Costs can be added up over devices and GPUs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dra.allocator.gpustate import GpuState
from dra.allocator.moves import Move
from dra.allocator.ongoing import Budget
from dra.allocator.score import MOST_COSTS, Cost, Policy, Situation, Weights
from dra.allocator.search.constraints import (
    NO_VALUES,
    Allowed,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    WantType,
    is_complete,
)
from dra.cel.offers import Offer
from dra.gpu.geometry import Occupant, Placement, Usage
from dra.gpu.shares import NONE_HELD, Share, SharesHeld

_COMPONENTS = MOST_COSTS + 1
"""Upper bound on the entries of a cost, with the one that idle slices add."""

WHOLE = 1e6
"""A whole GPU costs more than any set of slices, where either would do."""

EMPTIEST = "spread"
"""Name of the placement policy that spreads."""

_FEW = 2
"""Shares up to which each place for a new slice is tried; for more, only the best place."""

_JOINED = 1e-6
"""Factor on the price of a share of an existing slice; a slice to be made has factor 1."""


def segmented(policies: Sequence[Policy]) -> list[Policy]:
    """The same policies with costs that can be added up: each has components of its own.

    Where they disagree, the policy that comes first decides.
    """
    order = {p: _shifted(p, n * _COMPONENTS) for n, p in enumerate(dict.fromkeys(policies))}
    return [order[policy] for policy in policies]


def _shifted(policy: Policy, places: int) -> Policy:
    if not places:
        return policy
    padding = (0.0,) * places
    return lambda situation, move: (*padding, *policy(situation, move))


def sum_of(one: Cost, other: Cost) -> Cost:
    """The sum of two costs, component by component."""
    if len(one) < len(other):
        one, other = other, one
    return (*map(operator.add, one, other), *one[len(other) :])


class ChosenDevice(NamedTuple):
    """One device given to a want of type ``type``; no placement for a whole GPU."""

    type: int
    offer: Offer
    placement: Placement | None


class Option(NamedTuple):
    """Devices that one GPU could give together, with their cost.

    ``used``: values that no device of another GPU may have then. ``bound``: values that the other
    devices under the same constraints must have.
    """

    take: Vector
    cost: Cost
    devices: tuple[ChosenDevice, ...]
    used: ConstraintValues = NO_VALUES
    bound: ConstraintValues = NO_VALUES

    @property
    def key(self) -> tuple[Vector, ConstraintValues, ConstraintValues]:
        """Equal for options that are alike to other GPUs."""
        return self.take, self.used, self.bound

    def with_one(self, index: int) -> Vector:
        """``take`` with one more device for a want of type ``index``."""
        return tuple([n + (i == index) for i, n in enumerate(self.take)])


def nothing(types: int) -> Option:
    """The option of giving nothing."""
    return Option((0,) * types, (), ())


class Part(NamedTuple):
    """A shared slice, or the whole GPU (no placement); ``held``: sum of its shares.

    ``uids``: of the claims at hand that want several shares, those that have one of it.
    """

    placement: Placement | None
    profile_id: int | None
    held: SharesHeld
    uids: frozenset[str] = frozenset()

    def joined_by(self, share: Share, uid: str) -> Part:
        """The part with one more share; ``uid``: of the claim if it wants several, else empty."""
        uids = self.uids | {uid} if uid else self.uids
        return self._replace(held=self.held.add(share), uids=uids)

    @property
    def start(self) -> int:
        """The first memory slice."""
        return self.placement.start if self.placement is not None else 0


def parts_of(state: GpuState) -> tuple[Part, ...]:
    """The parts of a GPU that more claims may share."""
    parts = [Part(s.placement, s.profile_id, s.held) for s in state.shared_slices]
    if state.gpu.shares:
        parts.append(Part(None, None, state.shared or NONE_HELD))
    return tuple(parts)


class _Room(NamedTuple):
    """The GPU after some devices were given: its usage, and the parts of it that are shared."""

    usage: Usage
    parts: tuple[Part, ...]


_Longer = Iterator[tuple[_Room, Option]]
"""An option with one more device, and the GPU then, for each device that would do."""

_Found = dict[tuple[_Room, object], Option]
"""Options by the GPU with their devices, and by ``Option.key``."""

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class GpuWants:
    """Wants by type, how many devices of each (``target``), and what of one GPU would do.

    ``allowed``: per type, the offers of that GPU. ``namespace``: the pod's. ``policies``: per type,
    with costs that can be added up (``segmented``).
    """

    types: Sequence[WantType]
    target: Vector
    namespace: str
    allowed: Allowed
    rules: ConstraintRules
    policies: Sequence[Policy]


def find_options(
    state: GpuState, wants: GpuWants, weights: Weights, budget: Budget
) -> list[Option]:
    """Every set of devices, up to the target, that the GPU could give.

    Of sets that are alike to other GPUs only the cheapest is returned, the one found first (lowest
    starts) winning ties. A claim has one share of a device at most. Of existing slices the fullest
    is shared, or the emptiest by a policy that spreads. A policy that packs takes an empty shared
    GPU last. ``weights``: those of the GPU's slices, of no matter where none can be made.

    Raises:
        TooHardError: there are more sets than ``budget`` suffices for.
    """
    sets = _Sets(state, wants, weights, budget)
    best: dict[object, Option] = {}
    for option in sets.every():
        kept = _leaving(option, wants.target, wants.rules.members)
        if kept is not None:
            _keep(best, kept.key, kept)
    return [*best.values()]


class _WantedShare(NamedTuple):
    """One more share for a want of type ``type``.

    ``uid``: of the claim if it wants several shares, else empty.
    """

    type: int
    share: Share
    offer: Offer
    uid: str


class _Sets:
    def __init__(self, state: GpuState, wants: GpuWants, weights: Weights, budget: Budget) -> None:
        self._state = state
        self._wants = wants
        self._budget = budget
        self._empty = state.situation(weights)
        self._prices: dict[tuple[object, ...], tuple[tuple[Cost, Move], ...]] = {}
        self._alone = [[o for o in group if not o.shared] for group in wants.allowed]
        self._is_one_policy = len({*wants.policies}) == 1
        shares = [i for i, group in enumerate(wants.allowed) if any(o.shared for o in group)]
        self._shares = [index for index in shares for _ in range(wants.target[index])]
        owners = [wants.types[index].uid for index in self._shares]
        self._several = {uid for uid in owners if owners.count(uid) > 1}

    def every(self) -> Iterator[Option]:
        """The sets: devices that claims have alone first, then one share after the other."""
        start = _Room(self._state.usage, parts_of(self._state) if self._shares else ())
        option = nothing(len(self._wants.target))
        layer: _Found = {(start, option.key): option}
        sets: _Found = {}
        while layer:
            sets |= layer
            following: _Found = {}
            for (room, _), option in layer.items():
                for after, longer in self._with_one_alone(room, option):
                    _keep(following, (after, longer.key), longer)
            layer = following
        for index in self._shares:
            for (room, _), option in [*sets.items()]:
                for after, longer in self._with_share(index, room, option):
                    _keep(sets, (after, longer.key), longer)
        yield from sets.values()

    def _with_one_alone(self, room: _Room, option: Option) -> _Longer:
        """``option`` with one more device that its claim has alone."""
        situation = self._situation(room, option)
        for index, wanted in enumerate(self._wants.target):
            if option.take[index] < wanted:
                for offer in self._alone[index]:
                    if offer.profile is None:
                        yield from self._whole(index, offer, room, option)
                    else:
                        yield from self._making(index, offer, room, option, situation=situation)

    def _whole(self, index: int, offer: Offer, room: _Room, option: Option) -> _Longer:
        values = self._wants.rules.values_with(index, offer, option.used, option.bound)
        if values is not None and not option.devices and not self._state.holdings:
            device = ChosenDevice(index, offer, None)
            yield room, Option(option.with_one(index), (WHOLE,), (device,), *values)

    def _situation(self, room: _Room, option: Option) -> Situation:
        """The GPU with the devices of ``option``."""
        made = len({device.placement for device in option.devices})
        return self._empty._replace(usage=room.usage, instances=self._empty.instances + made)

    def _making(
        self, index: int, offer: Offer, room: _Room, option: Option, *, situation: Situation
    ) -> _Longer:
        """``option`` with a slice that is made for a want of type ``index``, at each place."""
        values = self._wants.rules.values_with(index, offer, option.used, option.bound)
        if values is None:
            return
        seen = situation
        if not self._is_one_policy:
            seen = self._seen_by(index, option, situation)
        moves = self._priced(index, offer, situation, seen)
        self._budget.spend(len(moves))
        take = option.with_one(index)
        for price, move in moves:
            devices = (*option.devices, ChosenDevice(index, offer, move.placement))
            longer = Option(take, sum_of(option.cost, price), devices, *values)
            yield _Room(move.after, room.parts), longer

    def _priced(
        self, index: int, offer: Offer, situation: Situation, seen: Situation
    ) -> tuple[tuple[Cost, Move], ...]:
        """The moves that make ``offer``, as the policy of type ``index`` judges them.

        ``situation``: the GPU with all that was chosen; ``seen``: the GPU as that policy sees it.
        Worked out once for every state that the GPU comes to.
        """
        policy, table = self._wants.policies[index], self._state.table
        key = (policy, offer, situation.usage, seen.usage, seen.instances)
        known = self._prices.get(key)
        if known is None and table is not None and offer.profile is not None:
            judged = {m.placement: m for m in table.moves(seen.usage, offer.profile)}
            known = self._prices[key] = tuple(
                ((offer.size, *policy(seen, judged[move.placement])), move)
                for move in table.moves(situation.usage, offer.profile)
            )
        return known or ()

    def _seen_by(self, index: int, option: Option, situation: Situation) -> Situation:
        """The GPU as the policy of type ``index`` sees it: without what other policies chose.

        Otherwise a policy that packs would draw slices of one that spreads to the GPU that it
        fills. Slices that were shared before are part of the empty GPU.
        """
        policies, table = self._wants.policies, self._state.table
        others = [g for g in option.devices if policies[g.type] is not policies[index]]
        if not others or table is None:
            return situation
        usage = self._empty.usage
        for device in option.devices:
            profile, place = device.offer.profile, device.placement
            if device in others or profile is None or place is None:
                continue
            if not place.mask & usage.mask:
                usage = table.geometry.add(usage, Occupant(place, profile.id))
        return situation._replace(usage=usage, instances=situation.instances - len(others))

    def _with_share(self, index: int, room: _Room, option: Option) -> _Longer:
        """``option`` with a share for a want of type ``index``, of each device that would do."""
        if option.take[index] >= self._wants.target[index]:
            return
        kind = self._wants.types[index]
        uid = kind.uid if kind.uid in self._several else ""
        begun = False
        for offer in sorted(self._wants.allowed[index], key=lambda o: o.size):
            share = self._state.share(kind.ask, self._wants.namespace, offer.profile)
            if not offer.shared or share is None:
                continue
            self._budget.spend(1)
            wanted = _WantedShare(index, share, offer, uid)
            yield from self._joining(wanted, room, option)
            if not begun and not self._state.why_full(share, offer.profile):
                for found in self._beginning(wanted, room, option):
                    begun = True
                    yield found

    def _joining(self, wanted: _WantedShare, room: _Room, option: Option) -> _Longer:
        """``option`` with a share of a slice that is there, or of the GPU, where it has room."""
        index, share, offer, uid = wanted
        values = self._wants.rules.values_with(index, offer, option.used, option.bound)
        if values is None:
            return
        profile_id = offer.profile.id if offer.profile is not None else None
        for part in room.parts:
            if part.profile_id != profile_id or uid in part.uids:
                continue
            self._budget.spend(1)
            if self._state.why_full(share, offer.profile, part.held):
                continue
            cost = sum_of(option.cost, (self._price(wanted, part.held),))
            devices = (*option.devices, ChosenDevice(index, offer, part.placement))
            longer = Option(option.with_one(index), cost, devices, *values)
            joined = part.joined_by(share, uid)
            parts = tuple(joined if each is part else each for each in room.parts)
            yield _Room(room.usage, parts), longer

    def _beginning(self, wanted: _WantedShare, room: _Room, option: Option) -> _Longer:
        """``option`` with a share of a new slice, at each place; of many at the best only."""
        index, share, offer, uid = wanted
        if self._state.table is None or offer.profile is None:
            return
        situation = self._situation(room, option)
        made = [*self._making(index, offer, room, option, situation=situation)]
        if len(self._shares) > _FEW and made:
            made = [min(made, key=lambda found: found[1].cost)]
        for (usage, parts), longer in made:
            part = Part(longer.devices[-1].placement, offer.profile.id, NONE_HELD)
            every = (*parts, part.joined_by(share, uid))
            yield _Room(usage, tuple(sorted(every, key=lambda each: each.start))), longer

    def _price(self, wanted: _WantedShare, held: SharesHeld) -> float:
        """Price of a share of a slice that is there, or of the GPU; a new slice costs its size.

        A share of the GPU costs about as much as a whole GPU, and the GPU counts as full as it was
        before the decision.
        """
        is_spread = self._wants.types[wanted.type].policy == EMPTIEST
        offer = wanted.offer
        if offer.profile is None:
            memory, given = self._state.gpu.memory_mib, self._state.shared or NONE_HELD
            full = given.memory_mib / memory if memory else 0.0
            return WHOLE + (full if is_spread else 1.0 - full)
        memory = offer.profile.memory_mib
        full = min(1.0, held.memory_mib / memory) if memory else 0.0
        if is_spread:
            return offer.size + 0.5 + full / 4
        return (offer.size + (1.0 - full) / 2) * _JOINED


def _leaving(option: Option, target: Vector, members: Members) -> Option | None:
    """``option`` with only the values that matter to other GPUs.

    None where it binds devices of other GPUs to a value that only this GPU has.
    """
    if not option.used and not option.bound:
        return option
    bound = {v for v in option.bound if not is_complete(v, option.take, target, members)}
    if any(value.local for value in bound):
        return None
    used = frozenset(v for v in option.used if not v.local)
    return option._replace(used=used, bound=frozenset(bound))


def _keep(best: dict[_K, Option], key: _K, option: Option) -> None:
    """Take an option if it is cheaper than the one that is known for ``key``."""
    known = best.get(key)
    if known is None or option.cost < known.cost:
        best[key] = option
