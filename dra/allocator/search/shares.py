"""Options of a shared GPU: the sets of shares and slices that it could give.

Shares are of the whole GPU, or of slices that are there or could be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra.allocator.gpustate import GpuState
from dra.allocator.search.constraints import Allowed, ConstraintRules, Vector, WantType
from dra.allocator.search.options import (
    WHOLE,
    Budget,
    ChosenDevice,
    Option,
    Pricing,
    Slices,
    add,
    keep,
    leaving,
    nothing,
)
from dra.cel.offers import Offer
from dra.gpu.geometry import Placement, Profile, Usage
from dra.gpu.shares import NONE_HELD, Share, SharesHeld

EMPTIEST = "spread"
"""Name of the placement policy that spreads."""

_FEW = 2
"""Shares up to which each place for a new slice is tried; for more, only the best place."""

_JOINED = 1e-6
"""Factor on the price of a share of an existing slice; a slice to be made has factor 1."""


@dataclass(frozen=True, slots=True)
class SharesWanted:
    """Wants by type, how many devices of each (``target``), and what of one GPU would do.

    ``allowed``: per type, the offers of that GPU. ``namespace``: the pod's.
    """

    types: Sequence[WantType]
    target: Vector
    namespace: str
    allowed: Allowed
    rules: ConstraintRules


class _Part(NamedTuple):
    """A shared slice, or the whole GPU (no placement); ``held``: sum of its shares.

    ``uids``: of the claims at hand that want several shares, those that have one of it.
    """

    placement: Placement | None
    profile_id: int | None
    held: SharesHeld
    uids: frozenset[str] = frozenset()


class _Room(NamedTuple):
    """The GPU after some devices were given: its usage, and the parts of it that are shared."""

    usage: Usage
    parts: tuple[_Part, ...]


_Found = dict[tuple[_Room, object], Option]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One more share for a want of type ``index``.

    ``uid``: of the claim if it wants several shares, else empty.
    """

    index: int
    share: Share
    offer: Offer
    profile: Profile | None
    uid: str


def share_options(
    state: GpuState, wants: SharesWanted, pricing: Pricing | None, budget: Budget
) -> list[Option]:
    """Every set of slices and shares that fits the GPU; of equal sets only the cheapest.

    A claim has one share of a device at most. ``pricing``: that of slices, None where no slices can
    be made. Of existing slices the fullest is preferred, or the emptiest by a policy that spreads.
    A policy that packs takes an empty shared GPU last.

    Raises:
        TooHardError: there are more sets than ``budget`` suffices for.
    """
    return _Sets(state, wants, pricing, budget).found()


class _Sets:
    def __init__(
        self, state: GpuState, wants: SharesWanted, pricing: Pricing | None, budget: Budget
    ) -> None:
        self._state = state
        self._wants = wants
        self._budget = budget
        self._slices: Slices | None = None
        if pricing is not None:
            self._slices = Slices(
                state.situation(pricing.weights),
                pricing,
                target=wants.target,
                allowed=wants.allowed,
                rules=wants.rules,
            )
        shares = [i for i, group in enumerate(wants.allowed) if any(o.shared for o in group)]
        self._shares = [index for index in shares for _ in range(wants.target[index])]
        owners = [wants.types[index].uid for index in self._shares]
        self._several = {uid for uid in owners if owners.count(uid) > 1}

    def found(self) -> list[Option]:
        """The sets: slices that claims have alone first, then one share after the other."""
        state, wants = self._state, self._wants
        parts = [_Part(s.placement, s.profile_id, s.held) for s in state.shared_slices]
        if state.gpu.sharing is not None:
            parts.append(_Part(None, None, state.shared or NONE_HELD))
        room, option = _Room(state.usage, tuple(parts)), nothing(len(wants.target))
        layer: _Found = {(room, option.key): option}
        sets = dict(layer)
        while layer and self._slices is not None:
            following: _Found = {}
            for (room, _), option in layer.items():
                for usage, longer in self._slices.with_one_more(room.usage, option, self._budget):
                    keep(following, (_Room(usage, room.parts), longer.key), longer)
            sets |= following
            layer = following
        for index in self._shares:
            for (room, _), option in [*sets.items()]:
                for after, longer in self._with_share(index, room, option):
                    keep(sets, (after, longer.key), longer)
        best: dict[object, Option] = {}
        for option in sets.values():
            kept = leaving(option, wants.target, wants.rules.members)
            if kept is not None:
                keep(best, kept.key, kept)
        return [*best.values()]

    def _with_share(
        self, index: int, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """``option`` with a share for a want of type ``index``, of each device that would do."""
        if option.take[index] >= self._wants.target[index]:
            return
        kind = self._wants.types[index]
        begun = False
        for offer in sorted(self._wants.allowed[index], key=lambda o: o.size):
            share = self._state.share(kind.ask, self._wants.namespace, offer.profile)
            if not offer.shared or share is None:
                continue
            self._budget.spend(1)
            uid = kind.uid if kind.uid in self._several else ""
            wanted = _Wanted(index, share, offer, offer.profile, uid)
            yield from self._joining(wanted, room, option)
            if not begun and not self._state.why_full(share, offer.profile):
                for found in self._beginning(wanted, room, option):
                    begun = True
                    yield found

    def _joining(
        self, wanted: _Wanted, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """``option`` with a share of a slice that is there, or of the GPU, where it has room."""
        index, offer = wanted.index, wanted.offer
        values = self._wants.rules.values_with(index, offer, option.used, option.bound)
        if values is None:
            return
        profile_id = wanted.profile.id if wanted.profile is not None else None
        for part in room.parts:
            if part.profile_id != profile_id or wanted.uid in part.uids:
                continue
            self._budget.spend(1)
            if self._state.why_full(wanted.share, wanted.profile, part.held):
                continue
            device = ChosenDevice(index, offer, part.placement)
            take = tuple(n + (i == index) for i, n in enumerate(option.take))
            cost = add(option.cost, (self._price(wanted, part.held),))
            longer = Option(take, cost, (*option.devices, device), *values)
            joined = _joined_by(part, wanted)
            parts = tuple(joined if each is part else each for each in room.parts)
            yield _Room(room.usage, parts), longer

    def _beginning(
        self, wanted: _Wanted, room: _Room, option: Option
    ) -> Iterator[tuple[_Room, Option]]:
        """``option`` with a share of a new slice, at each place; of many at the best only."""
        if self._slices is None or wanted.profile is None:
            return
        offered = self._slices.making(
            wanted.index, wanted.offer, room.usage, option, budget=self._budget
        )
        made = [*offered]
        if len(self._shares) > _FEW and made:
            made = [min(made, key=lambda found: found[1].cost)]
        for usage, longer in made:
            part = _Part(longer.devices[-1].placement, wanted.profile.id, NONE_HELD)
            parts = (*room.parts, _joined_by(part, wanted))
            yield _Room(usage, tuple(sorted(parts, key=_start))), longer

    def _price(self, wanted: _Wanted, held: SharesHeld) -> float:
        """Price of a share of a slice that is there, or of the GPU; a new slice costs its size.

        A share of the GPU costs about as much as a whole GPU, and the GPU counts as full as it was
        before the decision.
        """
        is_spread = self._wants.types[wanted.index].policy == EMPTIEST
        if wanted.profile is None:
            memory, given = self._state.gpu.memory_mib, self._state.shared or NONE_HELD
            full = given.memory_mib / memory if memory else 0.0
            return WHOLE + (full if is_spread else 1.0 - full)
        memory = wanted.profile.memory_mib
        full = min(1.0, held.memory_mib / memory) if memory else 0.0
        if is_spread:
            return wanted.offer.size + 0.5 + full / 4
        return (wanted.offer.size + (1.0 - full) / 2) * _JOINED


def _joined_by(part: _Part, wanted: _Wanted) -> _Part:
    uids = part.uids | {wanted.uid} if wanted.uid else part.uids
    return part._replace(held=part.held.add(wanted.share), uids=uids)


def _start(part: _Part) -> int:
    return part.placement.start if part.placement is not None else 0
