"""Why claims that wait are not served: the findings, the heaviest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cli.explaining.facts import Facts
from cli.explaining.model import Finding, GpuAnswer, NodeAnswer, Told, Why
from cli.explaining.nodes import Problem
from cli.explaining.remedies import REMEDIES
from cli.explaining.room import Room
from dra.claims.reasons import Reason
from dra.claims.wants import Want
from dra.gpu.inventory import Allocator

_NAMED = 4
_OF_THE_NODE = frozenset({Why.BOUND, Why.ELSEWHERE, Why.NO_NODE, Why.BY_SCHEDULER})
_SAYS_MORE = frozenset(
    {Reason.TAKEN_BACK, Reason.REFUSED, Reason.NEXT_IN_LINE, Reason.PREPARE_FAILED}
)
"""What only the controller can know."""


def finding(reason: str, message: str) -> Finding:
    """A finding with what can be done about it."""
    return Finding(str(reason), message, REMEDIES.get(reason, ""))


def find_waiting(
    problem: Problem,
    facts: Facts,
    room: Room,
    answers: Sequence[NodeAnswer],
    told: Iterable[Told],
) -> tuple[Finding, ...]:
    """What keeps ``problem`` from being served. Raises SelectorError."""
    if not facts.site.nodes:
        missing = "no MigNode exists" if facts.installed else "the cluster knows no MigNodes"
        return (finding(Why.NO_MIGNODE, f"{missing}: no node offers GPUs"),)
    impossible = _impossible(problem, facts, room)
    if impossible is not None:
        return (impossible,)
    lead = _lead(facts)
    if any(a.fits for a in answers):
        if lead is not None:
            return (lead,)
        said = next((t for t in told if t.reason in _SAYS_MORE), None)
        if said is not None:
            return (finding(said.reason, said.message),)
        names = ", ".join([a.name for a in answers if a.fits][:_NAMED])
        return (finding(Why.SOON, f"it fits on {names}: the controller is about to allocate it"),)
    groups: dict[str, list[NodeAnswer]] = {}
    for answer in answers:
        groups.setdefault(answer.reason, []).append(answer)
    found = [_about(reason, group) for reason, group in groups.items()]
    order = {f.reason: _weight(f.reason, groups[f.reason]) for f in found}
    found.sort(key=lambda f: order[f.reason])
    return (*found, lead) if lead is not None else tuple(found)


def _lead(facts: Facts) -> Finding | None:
    if facts.leader is None or facts.leader:
        return None
    return finding(
        Why.NOT_LEADING,
        f"no controller leads (Lease {facts.driver}-controller is missing or has run out): "
        "nothing is allocated",
    )


def _weight(reason: str, group: list[NodeAnswer]) -> tuple[bool, bool, int]:
    """Nodes that never can go last; what most nodes say goes first."""
    return reason == Why.NO_SUCH_DEVICE, reason in _OF_THE_NODE, -len(group)


def _impossible(problem: Problem, facts: Facts, room: Room) -> Finding | None:
    """The first want that no GPU could ever serve."""
    views = [
        v for n in facts.site.nodes if n.inventory.allocator is Allocator.CONTROLLER for v in n.gpus
    ]
    for want in (w for c in problem.claims for w in c.wants) if views else ():
        answers = [room.on_gpu(want, v) for v in views]
        if any(a.reason != Why.NO_SUCH_DEVICE for a in answers):
            continue
        if any(len(a) > 1 for c in problem.claims for a in c.choices):
            continue  # another alternative may do
        failed = (room.matched(want, v) for v in views)
        error, costly = next(((m.error, m.costly) for m in failed if m.error), ("", False))
        if error:
            reason = Reason.COSTLY_SELECTOR if costly else Reason.BAD_SELECTOR
            return finding(reason, f"request {want.request!r}: {error}")
        return finding(Reason.NO_SUCH_PROFILE, _offered(want, facts))
    return None


def _offered(want: Want, facts: Facts) -> str:
    profiles = {
        (p.memory_mib, p.name)
        for v in facts.site.gpus
        if v.gpu.geometry and v.gpu.mig_enabled
        for p in v.gpu.geometry.profiles
        if p.placements
    }
    have = ", ".join(name for _, name in sorted(profiles)) or "none, no GPU is in MIG mode"
    return (
        f"request {want.request!r} of class {want.class_name!r}: no GPU of any node has such a "
        f"device, however empty; profiles are: {have}"
    )


def _about(reason: str, group: list[NodeAnswer]) -> Finding:
    names = ", ".join(a.name for a in group[:_NAMED])
    more = f" and {len(group) - _NAMED} more" if len(group) > _NAMED else ""
    closest = _closest(reason, group)
    if closest is not None:
        node, gpu = closest
        others = sum(g.reason != Why.NO_SUCH_DEVICE for a in group for g in a.gpus) - 1
        tail = f" ({others} more GPUs on {names}{more} cannot either)" if others > 0 else ""
        return finding(reason, f"{node} {gpu.name}: {gpu.message}{tail}")
    texts = dict.fromkeys(a.message for a in group if a.message)
    return finding(reason, f"{names}{more}: {'; '.join(list(texts)[:_NAMED]) or reason}")


def _closest(reason: str, group: list[NodeAnswer]) -> tuple[str, GpuAnswer] | None:
    """Of the GPUs with this reason the one that least is in the way of."""
    found = [(a.name, g) for a in group for g in a.gpus if g.reason == reason]
    return min(found, key=lambda f: (f[1].cost, f[0], f[1].name)) if found else None
