"""The words for a GPU's answer, with the claims in the way, their places and their pods. Pure."""

from __future__ import annotations

from dataclasses import replace

from cli.site.occupancy import Site, Slot
from dra.allocator.explain.answers import GpuAnswer
from dra.gpu.inventory import InstanceState

_LEAVING = frozenset({InstanceState.RECLAIMING.value, InstanceState.ORPHAN.value})


def slots_of(site: Site, node: str, answer: GpuAnswer) -> tuple[Slot, ...]:
    """The slots of the answer's blockers, in their order."""
    view = site.node(node)
    held = {
        (s.claim.uid if s.claim else "", s.placement): s
        for each in (view.gpus if view else ())
        for s in (each.slots if each.gpu.name == answer.name else ())
    }
    found = (held.get((b.claim_uid, b.placement)) for b in answer.blockers)
    return tuple(slot for slot in found if slot is not None)


def text_of(site: Site, node: str, answer: GpuAnswer) -> str:
    """The answer with the fewest that would have to go, by name."""
    if not answer.blockers:
        return answer.message
    least = replace(answer, blockers=answer.blockers[: answer.least])
    slots = slots_of(site, node, least)
    who = ", ".join(f"{_who(s)} ({s.where}{_state(s)})" for s in slots)
    more = len(answer.blockers) - answer.least
    tail = f"; {more} more hold{'s' if more == 1 else ''} the rest" if more > 0 else ""
    return f"{answer.message} (blocked by {who}{tail})"


def _who(slot: Slot) -> str:
    if slot.claim is None:
        return f"a {slot.state} instance"
    pods = f" of pod {', '.join(slot.pods)}" if slot.pods else ""
    return f"claim {slot.claim}{pods}"


def _state(slot: Slot) -> str:
    if slot.state in _LEAVING:
        return f", {slot.state}{': ' + slot.message if slot.message else ''}"
    return ""
