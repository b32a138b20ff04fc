"""Obstacles that stand in the way on every node, whatever is free there."""

from __future__ import annotations

import re

from dra.allocator.explain.gpus import lacks_mig_mode, names
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.search.constraints import all_of
from dra.allocator.search.search import Search
from dra.cel.kinds import Match
from dra.cel.offers import GpuKind
from dra.claims.allocation import MAX_RESULTS
from dra.claims.reasons import Obstacle, Reason

_PROFILE = re.compile(r"['\"](\d+g\.\d+gb[\w.+-]*)['\"]")


def find_impossible(search: Search, fleet: Fleet) -> Obstacle | None:
    """Reason why no node of ``fleet`` could ever serve ``search``; None where one could."""
    found = _unmatched(search, fleet) or _overlapping(search, fleet)
    return found or (None if fleet.schedulers else _too_many(search, fleet))


def _unmatched(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want that no GPU of the fleet could ever serve."""
    for index, group in enumerate(search.wants):
        failure = Match(())
        for state in (s for node in fleet.nodes.values() for s in node.gpus):
            match = search.match(state, index)
            if match.offers:
                break
            failure = failure if failure.error else match
        else:
            return _impossible(search, index, failure, fleet, group[0].want.request)
    return None


def _overlapping(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want of everything that no node could ever serve."""
    wanted = [i for i, kind in enumerate(search.types) if kind.everything]
    for index in wanted:
        counts = [
            all_of([search.match(state, index).offers for state in node.gpus])
            for node in fleet.nodes.values()
        ]
        if all(n is None for n in counts if n != 0):
            return Obstacle(
                Reason.UNSUPPORTED,
                f"{_who(search, index)} of slices that overlap: they cannot all exist at once; ask "
                "for one profile (such as class mig-1g.5gb), for whole GPUs (class gpu.dra.dev), "
                "or for a count",
            )
    targets = (search.target_on(node.gpus) for node in fleet.nodes.values() if wanted)
    most = [search.most_of_a_claim(target) for target in targets if target is not None]
    if most and min(most) > MAX_RESULTS:
        return Obstacle(
            Reason.UNSUPPORTED,
            f"{_who(search, wanted[0])} means {min(most)} devices or more of its claim on every "
            f"node, a claim holds at most {MAX_RESULTS}; ask for a count",
        )
    return None


def _too_many(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want of more devices than a node can hold, or the one GPU that is to give all."""
    known: dict[GpuKind, int] = {}

    def most_of(state: GpuState, index: int) -> int:
        if state.kind not in known or index in search.telling:
            known[state.kind] = _most(search, state, index, fleet)
        return known[state.kind]

    for index, number in enumerate(search.target):
        known.clear()
        if number == 1 or search.types[index].everything:
            continue
        most, best = -1, ""
        for name in sorted(fleet.nodes):
            of_gpus = [0, *(most_of(state, index) for state in fleet.nodes[name].gpus)]
            found = max(of_gpus) if search.together else sum(of_gpus)
            if found >= number:
                break
            if found > most:
                most, best = found, name
        else:
            return _never(search, index, fleet.nodes[best], most)
    return None


def _most(search: Search, state: GpuState, index: int, fleet: Fleet) -> int:
    """Most devices that a GPU can hold; as many as are wanted where that cannot be told."""
    offers = search.match(state, index).offers
    profiles = [o.profile for o in offers if o.profile is not None]
    geometry = state.gpu.geometry
    if any(o.shared for o in offers):
        return search.target[index]
    if not offers:
        is_unknown = geometry is None or lacks_mig_mode(search, state, index, fleet.kinds)
        return search.target[index] * is_unknown
    return geometry.most(profiles) if profiles and geometry else 1


def _never(search: Search, index: int, node: NodeGpus, most: int) -> Obstacle:
    offers = {o.name: o for state in node.gpus for o in search.match(state, index).offers}
    asked = ", ".join(repr(each.want.request) for each in search.wants[index])
    where, others = ("GPU", "claims") if search.together else ("node", "pods")
    return Obstacle(
        Reason.UNSUPPORTED,
        f"request{'s' * (len(search.wants[index]) > 1)} {asked}: {search.target[index]} x "
        f"{names(offers.values())} can never be served: one {where} is to give all, and none has "
        f"more than {most}, as {node.inventory.node} when it is empty; ask for fewer or smaller "
        f"ones, or in several {others}",
    )


def _who(search: Search, index: int) -> str:
    return f"request {search.wants[index][0].want.request!r}: allocationMode All"


def _impossible(search: Search, index: int, failure: Match, fleet: Fleet, request: str) -> Obstacle:
    offered = sorted(fleet.profiles(), key=_profile_order)
    have = f"profiles are: {', '.join(offered)}" if offered else "no GPU is in MIG mode"
    expressions = " ".join(search.types[index].expressions)
    asked = _PROFILE.findall(expressions)
    if "memory" in expressions:
        have += _largest(fleet)
    unknown = sorted(set(asked) - set(offered))
    reason = _reason(search, index, fleet)
    if offered and reason is Reason.MIG_OFF:
        have += "; GPUs whose MIG mode is off may have it"
    if unknown:
        message = f"request {request!r}: no node offers profile {', '.join(unknown)}; {have}"
        return Obstacle(reason, message)
    if failure.error:
        message = f"request {request!r}: no device is selected; a selector failed: {failure.error}"
        return Obstacle(Reason.COSTLY_SELECTOR if failure.costly else Reason.BAD_SELECTOR, message)
    if others := about_schedulers(fleet):
        return Obstacle(
            Reason.WAITING,
            f"request {request!r}: no node that this controller allocates offers a device that its "
            f"selectors select{others}",
        )
    return Obstacle(
        reason,
        f"request {request!r}: no node offers a device that its selectors select; {have}",
    )


def _reason(search: Search, index: int, fleet: Fleet) -> Reason:
    """The word for what no GPU has: what MIG mode would bring is told apart."""
    states = (state for node in fleet.nodes.values() for state in node.gpus)
    if any(lacks_mig_mode(search, state, index, fleet.kinds) for state in states):
        return Reason.MIG_OFF
    return Reason.NO_SUCH_PROFILE


def about_schedulers(fleet: Fleet) -> str:
    """``; kube-scheduler allocates the GPUs of node a``; empty where it allocates none."""
    names = sorted(fleet.schedulers)
    if not names:
        return ""
    who = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes"
    return f"; kube-scheduler allocates the GPUs of {who}"


def _largest(fleet: Fleet) -> str:
    """``; the largest is 7g.40gb with 40192Mi``; empty without profiles."""
    kinds = {id(s.kind): s.kind for node in fleet.nodes.values() for s in node.gpus}
    profiles = [o.profile for kind in kinds.values() for o in kind.offers if o.profile is not None]
    if not profiles:
        return ""
    most = max(profiles, key=lambda p: (p.memory_mib, p.name))
    return f"; the largest is {most.name} with {most.memory_mib}Mi of memory"


def _profile_order(profile: str) -> tuple[int, int, str]:
    numbers = [int(n) for n in re.findall(r"\d+", profile)[:2]]
    return (numbers[0], numbers[1], profile) if len(numbers) > 1 else (0, 0, profile)
