"""Options of a GPU that several claims may have: the sets of shares that it could give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra.allocator.gpustate import GpuState
from dra.allocator.search.constraints import (
    NO_VALUES,
    Allowed,
    ConstraintRules,
    Vector,
    WantType,
    joined,
)
from dra.allocator.search.options import (
    WHOLE,
    Budget,
    ChosenDevice,
    Option,
    Pricing,
    Slices,
    add,
    leaving,
    nothing,
)
from dra.cel.offers import Offer
from dra.gpu.geometry import Placement, Profile, Usage
from dra.gpu.shares import NONE_HELD, Share, SharesHeld

EMPTIEST = "spread"
"""The policy that spreads."""


@dataclass(frozen=True, slots=True)
class SharesWanted:
    """Wants by type, how many devices of each, and what of one GPU would do.

    ``allowed`` is per type, ``namespace`` that of the pod.
    """

    types: Sequence[WantType]
    target: Vector
    namespace: str
    allowed: Allowed
    rules: ConstraintRules


def share_options(state: GpuState, wants: SharesWanted, budget: Budget) -> list[Option]:
    """Every set of shares that fits the GPU beside those that it gave, one of a claim at most.

    The fullest GPU is preferred, or the emptiest by a policy that spreads; an empty GPU is the last
    that one that packs would begin.

    Raises:
        TooHardError: there are more of them than ``budget`` suffices for.
    """
    held = state.shared or NONE_HELD
    found = [(nothing(len(wants.target)), held, frozenset[str]())]
    for index, kind in enumerate(wants.types):
        share = state.share(kind.ask, wants.namespace)
        offers = [offer for offer in wants.allowed[index] if offer.profile is None]
        if share is None or not wants.target[index] or not offers:
            continue
        budget.spend(len(found))
        for option, beside, claims in [*found]:
            if kind.uid in claims or state.why_full(share, beside=beside):
                continue
            longer = _with(option, index, offers[0], _price(state, kind, held), wants.rules)
            if longer is not None:
                found.append((longer, beside.add(share), claims | {kind.uid}))
    kept = (leaving(option, wants.target, wants.rules.members) for option, _, _ in found)
    return [option for option in kept if option is not None]


def _price(state: GpuState, kind: WantType, held: SharesHeld) -> float:
    """Cost of a share of the GPU: that of a whole one, and how empty or full it is by memory."""
    full = held.memory_mib / state.gpu.memory_mib if state.gpu.memory_mib else 0.0
    return WHOLE + (full if kind.policy == EMPTIEST else 1.0 - full)


def _with(
    option: Option, index: int, offer: Offer, price: float, rules: ConstraintRules
) -> Option | None:
    """``option`` with a share for a want of type ``index``; None where a constraint forbids it."""
    new = rules.distinct.get((index, offer), NO_VALUES)
    bound = joined(option.bound, rules.same.get((index, offer), NO_VALUES))
    if new & option.used or bound is None:
        return None
    take = tuple(n + (i == index) for i, n in enumerate(option.take))
    cost = (option.cost[0] + price,) if option.cost else (price,)
    devices = (*option.devices, ChosenDevice(index, offer, None))
    return Option(take, cost, devices, option.used | new, bound)


_FEW = 2
"""Up to so many shares are tried at every place where the slice could be made; more at the best."""

_JOINED = 1e-6
"""Price of a rank of a slice that is there already, where that of one to be made is 1."""


class _Part(NamedTuple):
    """A shared slice, with the claims of the problem at hand that want several shares."""

    placement: Placement
    profile_id: int
    held: SharesHeld
    uids: frozenset[str] = frozenset()


class _Room(NamedTuple):
    """The GPU after some devices were given: what is taken, and its shared slices."""

    usage: Usage
    parts: tuple[_Part, ...]


_Found = dict[tuple[_Room, object], Option]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One more share for a want of type ``index``; ``uid`` of a claim that wants several."""

    index: int
    share: Share
    offer: Offer
    profile: Profile
    uid: str


def slice_share_options(
    state: GpuState, wants: SharesWanted, pricing: Pricing, budget: Budget
) -> list[Option]:
    """Every set of slices and shares that fits the GPU, the cheapest of those that are alike.

    A claim has one share of a slice at most.

    Raises:
        TooHardError: there are more of them than ``budget`` suffices for.
    """
    return _Sets(state, wants, pricing, budget).found()


class _Sets:
    def __init__(
        self, state: GpuState, wants: SharesWanted, pricing: Pricing, budget: Budget
    ) -> None:
        self._state = state
        self._wants = wants
        self._budget = budget
        self._slices = Slices(
            state.situation(pricing.weights),
            pricing,
            target=wants.target,
            allowed=wants.allowed,
            rules=wants.rules,
        )
        shares = [
            index
            for index, group in enumerate(wants.allowed)
            if wants.target[index] and any(o.shared and o.profile is not None for o in group)
        ]
        self._shares = [index for index in shares for _ in range(wants.target[index])]
        owners = [wants.types[index].uid for index in self._shares]
        self._several = {uid for uid in owners if owners.count(uid) > 1}

    def found(self) -> list[Option]:
        """The sets: slices that claims have alone first, then one share after the other."""
        parts = (_Part(s.placement, s.profile_id, s.held) for s in self._state.shared_slices)
        empty, option = _Room(self._state.usage, tuple(parts)), nothing(len(self._wants.target))
        layer: _Found = {(empty, option.key): option}
        sets = dict(layer)
        while layer:
            following: _Found = {}
            for (room, _), option in layer.items():
                for usage, longer in self._slices.with_one_more(room.usage, option, self._budget):
                    _keep(following, _Room(usage, room.parts), longer)
            sets |= following
            layer = following
        for index in self._shares:
            for (room, _), option in [*sets.items()]:
                for after, longer in self._with_share(index, room, option):
                    _keep(sets, after, longer)
        best: dict[object, Option] = {}
        for option in sets.values():
            kept = leaving(option, self._wants.target, self._wants.rules.members)
            if kept is not None and (kept.key not in best or kept.cost < best[kept.key].cost):
                best[kept.key] = kept
        return [*best.values()]

    def _with_share(
        self, index: int, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """``option`` with a share for a want of type ``index``, of each slice that would do."""
        if option.take[index] >= self._wants.target[index]:
            return
        kind = self._wants.types[index]
        begun = False
        for offer in sorted(self._wants.allowed[index], key=lambda o: o.size):
            share = self._state.share(kind.ask, self._wants.namespace, offer.profile)
            if offer.profile is None or not offer.shared or share is None:
                continue
            self._budget.spend(1)
            uid = kind.uid if kind.uid in self._several else ""
            wanted = _Wanted(index, share, offer, offer.profile, uid)
            yield from self._joining(wanted, room, option)
            if not begun and not self._state.why_slice_full(share, offer.profile):
                for found in self._beginning(wanted, room, option):
                    begun = True
                    yield found

    def _joining(
        self, wanted: _Wanted, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """With a share of each slice that others have shares of."""
        values = self._slices.values(wanted.index, wanted.offer, option)
        if values is None:
            return
        for part in room.parts:
            if part.profile_id != wanted.profile.id or wanted.uid in part.uids:
                continue
            self._budget.spend(1)
            if self._state.why_slice_full(wanted.share, wanted.profile, part.held):
                continue
            device = ChosenDevice(wanted.index, wanted.offer, part.placement)
            take = tuple(n + (i == wanted.index) for i, n in enumerate(option.take))
            cost = add(option.cost, (self._price(wanted, part.held),))
            longer = Option(take, cost, (*option.devices, device), *values)
            joined = _joined_by(part, wanted)
            parts = tuple(joined if each is part else each for each in room.parts)
            yield _Room(room.usage, parts), longer

    def _beginning(
        self, wanted: _Wanted, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """With a share of a slice that is to be made; of many at the best place only."""
        offered = self._slices.making(
            wanted.index, wanted.offer, room.usage, option, budget=self._budget
        )
        made = [*offered]
        if len(self._shares) > _FEW and made:
            made = [min(made, key=lambda found: found[1].cost)]
        for usage, longer in made:
            placement = longer.devices[-1].placement
            if placement is not None:
                part = _joined_by(_Part(placement, wanted.profile.id, NONE_HELD), wanted)
                yield _Room(usage, tuple(sorted((*room.parts, part), key=_place))), longer

    def _price(self, wanted: _Wanted, held: SharesHeld) -> float:
        """Price of joining a slice; making one costs its rank."""
        memory = wanted.profile.memory_mib
        full = min(1.0, held.memory_mib / memory) if memory else 0.0
        if self._wants.types[wanted.index].policy == EMPTIEST:
            return wanted.offer.size + 0.5 + full / 4
        return (wanted.offer.size + (1.0 - full) / 2) * _JOINED


def _joined_by(part: _Part, wanted: _Wanted) -> _Part:
    uids = part.uids | {wanted.uid} if wanted.uid else part.uids
    return part._replace(held=part.held.add(wanted.share), uids=uids)


def _place(part: _Part) -> Placement:
    return part.placement


def _keep(found: _Found, room: _Room, option: Option) -> None:
    known = found.get((room, option.key))
    if known is None or option.cost < known.cost:
        found[room, option.key] = option
