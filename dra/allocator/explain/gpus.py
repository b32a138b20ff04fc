"""Answer of one GPU: why it has no room for what is asked, and what would have to go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dra.allocator.explain.answers import AnswerReason, GpuAnswer
from dra.allocator.gpustate import GpuState
from dra.allocator.search.search import Search
from dra.cel.offers import SHARE_OF, Offer
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.holdings import Holding
from dra.gpu.shares import NONE_HELD, Ask


def answer_gpu(search: Search, state: GpuState, missing: Sequence[int], *, full: bool) -> GpuAnswer:
    """Answer of a GPU that lacks the types ``missing``: reason, and what is in the way.

    ``full``: as the command line shows it, with the fewest holdings that would have to go; else as
    an event tells it, where also GPUs that could never serve are named by what blocks them now.
    """
    name = state.gpu.name
    if state.blocked:
        if full and not _possible(search, state, missing or search.indices):
            return GpuAnswer(name, AnswerReason.NO_SUCH_DEVICE, "has no such device")
        return GpuAnswer(name, _blocked_reason(state), state.blocked)
    if not missing:
        return GpuAnswer(name, AnswerReason.FITS, _where(search, state) if full else "")
    offers = _offers(search, state, missing)
    if not offers:
        return _without(search, state, missing, full=full)
    message = f"no room for {names(offers)}{_about_shares(search, state, missing)}"
    if not full:
        return GpuAnswer(name, _reason(state, ()), message, _in_the_way(state, offers))
    ways = _ways(state, offers)
    least = ways[0] if ways else []
    everyone = dict.fromkeys(h for way in ways for h in way)
    return GpuAnswer(
        name, _reason(state, least), message, tuple(everyone), len(least), _cost(least)
    )


def _in_the_way(state: GpuState, offers: Iterable[Offer]) -> tuple[Holding, ...]:
    """Holdings of memory slices that ``offers`` could use; all holdings if those are no slices."""
    wanted = 0
    for offer in offers:
        for placement in offer.profile.placements if offer.profile else ():
            wanted |= placement.mask
    return tuple(
        h
        for h in state.holdings
        if h.occupant is None or not wanted or h.occupant.placement.mask & wanted
    )


def _ways(state: GpuState, offers: Sequence[Offer]) -> list[list[Holding]]:
    """For each placement of ``offers``, the holdings that would have to go; the cheapest first."""
    found: list[list[Holding]] = []
    for offer in sorted(offers, key=lambda o: o.size):
        profile, geometry = offer.profile, state.gpu.geometry
        if profile is None or state.whole_held or geometry is None:
            found.append([*state.holdings])
        else:
            found += [_to_go(state.holdings, profile, at, geometry) for at in profile.placements]
    return sorted(found, key=lambda way: (_cost(way), len(way)))


def _to_go(
    held: Sequence[Holding], profile: Profile, at: Placement, geometry: Geometry
) -> list[Holding]:
    """The holdings that have to go for ``profile`` to fit ``at``.

    Those that overlap ``at`` go. As long as compute slices or engines are lacking, others go as
    well, those of the least weight first, then the smallest.
    """
    going = [h for h in held if h.occupant is not None and h.occupant.placement.overlaps(at)]
    staying = [h for h in held if h not in going]
    staying.sort(key=lambda h: (_weight(h), h.occupant.placement.size if h.occupant else 0))
    while staying:
        usage = geometry.usage({h.occupant for h in staying if h.occupant is not None})
        if geometry.fits(usage, profile, at):
            break
        going.append(staying.pop(0))
    return going


def _cost(holdings: Iterable[Holding]) -> int:
    """Cost of having ``holdings`` go, to compare GPUs."""
    return sum(map(_weight, holdings))


def _weight(holding: Holding) -> int:
    """Weight of a holding: least if it goes anyway, most if no claim holds it."""
    if holding.leaving:
        return 1
    return 2 if holding.claim_uid else 10


def _reason(state: GpuState, least: Sequence[Holding]) -> AnswerReason:
    """Reason why a GPU has no room, where ``least`` would have to go."""
    if state.whole_held:
        return AnswerReason.HELD_WHOLE
    if least and all(h.leaving for h in least):
        return AnswerReason.RECLAIMING
    if least and not any(h.claim_uid for h in least):
        return AnswerReason.FOREIGN
    return AnswerReason.NO_ROOM


def _about_shares(search: Search, state: GpuState, missing: Iterable[int]) -> str:
    """Reason why a GPU has no share of itself or of a slice for what is missing; or empty."""
    if not state.gpu.shares and not state.gpu.slice_shares:
        return ""
    for index in missing:
        ask = search.types[index].ask
        share = state.share(ask, search.namespace)
        if share is not None and (why := state.why_full(share, held=state.shared or NONE_HELD)):
            return f": {why}"
        profiles = [o.profile for o in search.match(state, index).offers if o.shared and o.profile]
        reasons = [*_about_slices(state, profiles, ask, search.namespace)]
        if reasons:
            return f": {'; '.join(reasons)}"
    return ""


def _about_slices(
    state: GpuState, profiles: Iterable[Profile], ask: Ask, namespace: str
) -> Iterator[str]:
    """Reasons why neither a new slice, nor one that claims share already, has room for ``ask``."""
    for profile in profiles:
        share = state.share(ask, namespace, profile)
        if share is None:
            continue
        if why := state.why_full(share, profile):
            yield f"{profile.name}: {why}"
            continue
        for known in state.shared_slices:
            why = state.why_full(share, profile, known.held)
            if known.profile_id == profile.id and why:
                yield f"{profile.name} at {known.placement}: {why}"


def names(offers: Iterable[Offer]) -> str:
    """``1g.5gb or 2g.10gb``, the smallest first; shares of slices last, after ``a share of``."""
    told = dict.fromkeys(o.name for o in sorted(offers, key=lambda o: o.size))
    alone = [name for name in told if not name.startswith(SHARE_OF)]
    if len(alone) == len(told):
        return " or ".join(told)
    parts = " or ".join(name.removeprefix(SHARE_OF) for name in told if name not in alone)
    return " or ".join([*alone, f"a {SHARE_OF}{parts}"])


def _offers(search: Search, state: GpuState, indices: Iterable[int]) -> list[Offer]:
    return [offer for index in indices for offer in search.match(state, index).offers]


def _without(search: Search, state: GpuState, missing: Sequence[int], *, full: bool) -> GpuAnswer:
    """The answer of a GPU that has no such device, however empty."""
    reason, message = AnswerReason.NO_SUCH_DEVICE, "has no such device"
    if state.gpu.layout is not None:
        message += f" (its layout is {state.gpu.layout.name})"
    if not state.gpu.mig_enabled:
        message += " (MIG is off)"
        if _is_off(state) and (not full or _possible(search, state, missing)):
            reason = AnswerReason.MIG_OFF
    return GpuAnswer(state.gpu.name, reason, message)


def lacks_mig_mode(search: Search, state: GpuState, index: int) -> bool:
    """True if a GPU would have devices of type ``index`` if its MIG mode were on."""
    return _is_off(state) and _possible(search, state, (index,))


def _is_off(state: GpuState) -> bool:
    """True if nothing but its mode keeps a GPU from being sliced."""
    return not state.gpu.mig_enabled and state.gpu.reason in ("", AnswerReason.MIG_OFF)


def _possible(search: Search, state: GpuState, indices: Sequence[int]) -> bool:
    """True if a GPU has devices of the types ``indices``, or would if it were usable in MIG mode.

    True also where its profiles are not known, as may be where it is not usable.
    """
    if state.gpu.geometry is None or _offers(search, state, indices):
        return True
    gpu, kinds = replace(state.gpu, mig_enabled=True, mig_pending=True), search.fleet.kinds
    kind = kinds.of(gpu, state.inventory)
    return any(kinds.match(search.types[i].expressions, kind, gpu).offers for i in indices)


def _where(search: Search, state: GpuState) -> str:
    """Words for where the smallest of what is asked for fits; empty if nothing fits."""
    geometry = state.gpu.geometry
    for offer in sorted(_offers(search, state, search.indices), key=lambda o: o.size):
        if offer.profile is None:
            return "a share of the GPU is free" if offer.shared else "the whole GPU is free"
        if offer.shared:
            asks = [kind.ask for kind in search.types]
            if any(state.gives(offer.profile, ask, search.namespace) for ask in asks):
                return f"a {offer.name} is free"
            continue
        starts = geometry.free_placements(state.usage, offer.profile) if geometry else ()
        if starts:
            where = f"placement{'s' if len(starts) > 1 else ''} (start:size)"
            return f"{offer.name} can be made at {where} {', '.join(map(str, starts))}"
    return ""


def _blocked_reason(state: GpuState) -> str:
    if state.inventory.is_drained(state.gpu.name):
        return AnswerReason.DRAINED
    if not state.inventory.ready:
        return AnswerReason.NOT_READY
    if state.gpu.mig_enabled != state.gpu.mig_pending:
        return AnswerReason.MODE_PENDING
    return state.gpu.reason or AnswerReason.UNAVAILABLE
