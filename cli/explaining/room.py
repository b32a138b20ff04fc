"""Whether a node's GPUs have what a pod's claims want, and who is in the way. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cli.explaining.model import GpuAnswer, Why
from cli.site.occupancy import GpuView, NodeView, Slot
from dra.cel.kinds import Kinds, Match, Offer
from dra.claims.wants import ClaimWants, Want
from dra.gpu.geometry import Geometry, Occupant, Placement, Profile, Usage
from dra.gpu.inventory import InstanceState

_STEPS = 20_000
"""Tries to fit several wants at once; what takes more is left to the controller's word."""

_LEAVING = frozenset({InstanceState.RECLAIMING.value, InstanceState.ORPHAN.value})


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be served together on one node: of each request the first alternative."""

    wants: tuple[Want, ...]

    @classmethod
    def of(cls, claims: Iterable[ClaimWants]) -> Ask:
        """All requests of some claims."""
        return cls(tuple(w for c in claims for w in c.wants))


class Room:
    """Answers for GPUs; selectors are evaluated as the controller does it."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def offers(self, want: Want, view: GpuView) -> tuple[Offer, ...]:
        """What of a GPU would serve ``want``. Raises SelectorError."""
        return self.matched(want, view).offers

    def matched(self, want: Want, view: GpuView) -> Match:
        """What its selectors select of a GPU, with what went wrong."""
        kind = self._kinds.of(view.gpu, view.inventory)
        return self._kinds.match(want.expressions, kind, view.gpu)

    def would_offer(self, want: Want, view: GpuView) -> bool:
        """Whether it would serve ``want`` in MIG mode, as far as its profiles are known."""
        gpu = replace(view.gpu, mig_enabled=True, mig_pending=True)
        return bool(self.offers(want, replace(view, gpu=gpu)))

    def on_gpu(self, want: Want, view: GpuView) -> GpuAnswer:
        """Why ``view`` cannot serve ``want`` now, or that it can."""
        name, gpu = view.gpu.name, view.gpu
        offers = self.offers(want, view)
        # Of a GPU that cannot be used, the profiles may not be known.
        possible = bool(offers) or gpu.geometry is None or self.would_offer(want, view)
        if view.blocked and possible:
            return GpuAnswer(name, _blocked_reason(view), view.blocked)
        if offers:
            return _room(view, offers)
        if possible and gpu.reason == Why.MIG_OFF:
            return GpuAnswer(name, Why.MIG_OFF, "MIG mode is off")
        return GpuAnswer(name, Why.NO_SUCH_DEVICE, "has no such device")

    def together(self, ask: Ask, node: NodeView) -> bool:
        """Whether all wants fit on the node at once; True also where that is too much to try."""
        todo = [w for w in ask.wants for _ in range(w.count if not w.everything else 1)]
        views = [v for v in node.gpus if not v.blocked]
        options = {w: [self.offers(w, v) for v in views] for w in set(todo)}
        free: list[Usage | None] = [None if _whole(v) else v.usage for v in views]
        todo.sort(key=lambda w: -max((o.size for g in options[w] for o in g), default=0))
        return _fit(todo, views, options, free, steps=[_STEPS])


def _fit(
    todo: Sequence[Want],
    views: Sequence[GpuView],
    options: dict[Want, list[tuple[Offer, ...]]],
    free: list[Usage | None],
    *,
    steps: list[int],
) -> bool:
    """Depth first, larger wants before smaller ones. ``free`` None is a GPU that is held whole."""
    if not todo:
        return True
    want, rest = todo[0], todo[1:]
    tried = set()
    for index, view in enumerate(views):
        usage = free[index]
        geometry = view.gpu.geometry
        for offer in options[want][index] if usage is not None else ():
            starts: tuple[Placement | None, ...] = (None,) if not view.slots else ()
            if offer.profile is not None and geometry is not None and usage is not None:
                starts = geometry.free_placements(usage, offer.profile)
            for start in starts:
                steps[0] -= 1
                if steps[0] <= 0:
                    return True
                after = _after(geometry, usage, offer.profile, start)
                key = (geometry, usage, after, *(options[w][index] for w in todo))
                if key in tried:
                    continue
                tried.add(key)
                free[index] = after
                if _fit(rest, views, options, free, steps=steps):
                    return True
                free[index] = usage
    return False


def _after(
    geometry: Geometry | None, usage: Usage | None, profile: Profile | None, at: Placement | None
) -> Usage | None:
    if geometry is None or profile is None or at is None or usage is None:
        return None
    return geometry.add(usage, Occupant(at, profile.id))


def _room(view: GpuView, offers: tuple[Offer, ...]) -> GpuAnswer:
    name, geometry = view.gpu.name, view.gpu.geometry
    whole = _whole(view)
    if whole is not None:
        return GpuAnswer(name, Why.HELD_WHOLE, f"held whole by {_who(whole)}", (whole,))
    if any(o.profile is None for o in offers):
        if not view.slots:
            return GpuAnswer(name, Why.FITS, "the whole GPU is free")
        who = ", ".join(_who(s) for s in view.slots)
        return GpuAnswer(name, Why.NO_ROOM, f"in use by {who}", view.slots)
    if geometry is None:
        return GpuAnswer(name, Why.NO_SUCH_DEVICE, "has no such device")
    profiles = [o.profile for o in sorted(offers, key=lambda o: o.size) if o.profile is not None]
    usage = view.usage
    for profile in profiles:
        starts = geometry.free_placements(usage, profile)
        if starts:
            at = ", ".join(str(s) for s in starts)
            return GpuAnswer(name, Why.FITS, f"{profile.name} fits at {at}")
    return _full(view, profiles, geometry)


def _full(view: GpuView, profiles: list[Profile], geometry: Geometry) -> GpuAnswer:
    """The least that would have to go, and what is in the way of every placement."""
    names = " or ".join(dict.fromkeys(p.name for p in profiles))
    ways = [_in_the_way(view, p, at, geometry) for p in profiles for at in p.placements]
    ways.sort(key=lambda way: (sum(_weight(s) for s in way), len(way)))
    least = ways[0] if ways else ()
    blockers = tuple({id(s): s for way in [least, *ways] for s in way}.values())
    cost = sum(_weight(s) for s in least)
    who = ", ".join(f"{_who(s)} ({s.where}{_state(s)})" for s in least)
    more = len(blockers) - len(least)
    tail = f"; {more} more hold{'s' if more == 1 else ''} the rest" if more > 0 else ""
    return GpuAnswer(
        view.gpu.name,
        _category(least),
        f"no room for {names} beside {who}{tail}",
        blockers,
        cost,
    )


def _in_the_way(
    view: GpuView, profile: Profile, at: Placement, geometry: Geometry
) -> tuple[Slot, ...]:
    """The slots that have to go for ``profile`` to fit ``at``.

    First those that overlap; where memory slices are free, compute slices or engines lack, and
    others have to go until they suffice, the smallest first.
    """
    going = [s for s in view.slots if s.placement is not None and s.placement.overlaps(at)]
    staying = [s for s in view.slots if s not in going]
    staying.sort(key=lambda s: (_weight(s), s.placement.size if s.placement else 0))
    while staying and not geometry.fits(_usage(staying, geometry), profile, at):
        going.append(staying.pop(0))
    return tuple(going)


def _usage(slots: Iterable[Slot], geometry: Geometry) -> Usage:
    return geometry.usage(
        Occupant(s.placement, s.profile_id) for s in slots if s.placement is not None
    )


def _whole(view: GpuView) -> Slot | None:
    return next((s for s in view.slots if s.placement is None), None)


def _weight(slot: Slot) -> int:
    """What is going anyway weighs least; what no claim holds, and so nobody ends, most."""
    if slot.state in _LEAVING:
        return 1
    return 2 if slot.claim is not None else 10


def _category(slots: tuple[Slot, ...]) -> str:
    if slots and all(s.state in _LEAVING for s in slots):
        return Why.RECLAIMING
    if slots and all(s.claim is None for s in slots):
        return Why.FOREIGN
    return Why.NO_ROOM


def _blocked_reason(view: GpuView) -> str:
    if view.inventory.is_drained(view.gpu.name):
        return Why.DRAINED
    if not view.inventory.ready:
        return Why.NOT_READY
    if view.gpu.mig_enabled != view.gpu.mig_pending:
        return Why.MODE_PENDING
    return view.gpu.reason or Why.WITHHELD


def _who(slot: Slot) -> str:
    if slot.claim is None:
        return f"a {slot.state} instance"
    pods = f" of pod {', '.join(slot.pods)}" if slot.pods else ""
    return f"claim {slot.claim}{pods}"


def _state(slot: Slot) -> str:
    if slot.state in _LEAVING:
        return f", {slot.state}{': ' + slot.message if slot.message else ''}"
    return ""
