"""Why a pod's claims wait, per node and GPU, in the few words that an event has room for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from controller.allocate import Allocator, Problem, Search
from controller.fleet import Fleet, NodeGpus
from controller.gpustate import GpuState, Holding
from controller.kinds import Offer
from controller.reasons import Obstacle, Reason

_LIMIT = 1000
_NAMED_NODES = 3
_NAMED_HOLDERS = 4
_PROFILE = re.compile(r"['\"](\d+g\.\d+gb[\w.+-]*)['\"]")


def explain(
    problem: Problem, allocator: Allocator, fleet: Fleet, delegated: AbstractSet[str] = frozenset()
) -> Obstacle:
    """What keeps ``problem`` from being solved now. Only for problems that were not solved."""
    if not fleet.nodes:
        return Obstacle(
            Reason.WAITING, "no node has GPUs that this controller allocates (there is no MigNode)"
        )
    search = Search(problem, fleet)
    impossible = _unmatched(search, fleet)
    if impossible is not None:
        return impossible
    texts: dict[str, list[str]] = {}
    for name in sorted(fleet.nodes):
        misfit = allocator.node_misfit(problem, name, delegated)
        text = misfit or _on_node(search, fleet.nodes[name])
        texts.setdefault(text, []).append(name)
    return Obstacle(Reason.WAITING, _joined(texts, len(fleet.nodes)))


def _unmatched(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want that no GPU of the fleet could ever serve."""
    states = [state for node in fleet.nodes.values() for state in node.gpus]
    for index, wants in enumerate(search.wants):
        failure = ""
        for state in states:
            match = search.match(state, index)
            if match.offers:
                break
            failure = failure or match.error
        else:
            return _impossible(search, index, failure, fleet, wants[0].request)
    return None


def _impossible(search: Search, index: int, failure: str, fleet: Fleet, request: str) -> Obstacle:
    offered = sorted(fleet.profiles(), key=_profile_order)
    have = f"profiles are: {', '.join(offered)}" if offered else "no GPU is in MIG mode"
    asked = _PROFILE.findall(" ".join(search.types[index].expressions))
    unknown = sorted(set(asked) - set(offered))
    if unknown:
        message = f"request {request!r}: no node offers profile {', '.join(unknown)}; {have}"
        return Obstacle(Reason.NO_SUCH_PROFILE, message)
    if failure:
        message = f"request {request!r}: no device is selected; a selector failed: {failure}"
        return Obstacle(Reason.BAD_SELECTOR, message)
    return Obstacle(
        Reason.NO_SUCH_PROFILE,
        f"request {request!r}: no node offers a device that its selectors select; {have}",
    )


def _on_node(search: Search, node: NodeGpus) -> str:
    if not node.gpus:
        return "no GPU"
    texts: dict[str, list[str]] = {}
    room_for: set[int] = set()
    for state in node.gpus:
        missing = [i for i in range(len(search.types)) if not _has_room(search, state, i)]
        room_for |= set(range(len(search.types))) - set(missing)
        text = _on_gpu(search, state, missing)
        if text:
            texts.setdefault(text, []).append(state.gpu.name)
    if len(room_for) == len(search.types):
        wanted = ", ".join(_wanted(search, node, i) for i in range(len(search.types)))
        bound = " with the same " + ", ".join(c.attribute for c in search.constraints)
        return f"no room for {wanted} together{bound if search.constraints else ''}"
    return "; ".join(f"{', '.join(gpus)} {text}" for text, gpus in texts.items())


def _has_room(search: Search, state: GpuState, index: int) -> bool:
    if state.blocked or state.whole_held:
        return False
    for offer in search.match(state, index).offers:
        if offer.profile is None:
            if not state.holdings:
                return True
        elif state.market and state.market.table.moves(state.usage, offer.profile):
            return True
    return False


def _on_gpu(search: Search, state: GpuState, missing: list[int]) -> str:
    if state.blocked:
        return state.blocked
    if not missing:
        return ""
    matching = {i: search.match(state, i).offers for i in missing}
    offers = [o for group in matching.values() for o in group]
    if not offers:
        return "has no such device" if state.gpu.mig_enabled else "has no such device (MIG is off)"
    holders = _blockers(state, offers)
    blocked_by = f" (blocked by {_listed(holders)})" if holders else ""
    return f"no room for {_names(offers)}{blocked_by}"


def _listed(holders: list[Holding]) -> str:
    """``claims default/a, default/b, foreign instance at 0:4 and 3 more``."""
    claims = [h.holder for h in holders if h.claim_uid]
    names = list(dict.fromkeys([*claims, *(h.holder for h in holders if not h.claim_uid)]))
    kind = {0: "", 1: "claim "}.get(len(set(claims)), "claims ")
    more = f" and {len(names) - _NAMED_HOLDERS} more" if len(names) > _NAMED_HOLDERS else ""
    return f"{kind}{', '.join(names[:_NAMED_HOLDERS])}{more}"


def _blockers(state: GpuState, offers: Iterable[Offer]) -> list[Holding]:
    """Who holds memory slices that one of ``offers`` could use; all, where it is not the slices."""
    wanted = 0
    for offer in offers:
        for placement in offer.profile.placements if offer.profile else ():
            wanted |= placement.mask
    return [
        h
        for h in state.holdings
        if h.occupant is None or not wanted or h.occupant.placement.mask & wanted
    ]


def _wanted(search: Search, node: NodeGpus, index: int) -> str:
    offers = {o.name: o for s in node.gpus for o in search.match(s, index).offers}
    return f"{search.target[index]} x {_names(offers.values())}"


def _names(offers: Iterable[Offer]) -> str:
    names = {o.name: None for o in sorted(offers, key=lambda o: o.size)}
    return " or ".join(names)


def _profile_order(profile: str) -> tuple[int, int, str]:
    numbers = [int(n) for n in re.findall(r"\d+", profile)[:2]]
    return (numbers[0], numbers[1], profile) if len(numbers) > 1 else (0, 0, profile)


def _joined(texts: Mapping[str, list[str]], nodes: int) -> str:
    parts = []
    for text, names in sorted(texts.items(), key=lambda item: -len(item[1])):
        who = ", ".join(names) if len(names) <= _NAMED_NODES else f"{len(names)} nodes"
        parts.append(f"{who}: {text}")
    message = f"{nodes} node{'s' if nodes != 1 else ''} - " + "; ".join(parts)
    return message if len(message) <= _LIMIT else message[: _LIMIT - 3] + "..."
