"""Why a pod's claims wait, per node and GPU, in the few words that an event has room for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from math import prod

from dra.allocator.admin_access import explain_view, is_view
from dra.allocator.allocate import Allocator
from dra.allocator.fleet.fleet import Fleet, NodeGpus
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.problem import Problem
from dra.allocator.search.budget import MOST_STEPS
from dra.allocator.search.search import Search, all_of
from dra.cel.kinds import Match, Offer
from dra.claims.allocation import MAX_RESULTS
from dra.claims.alternatives import MAX_CHOICES, choices
from dra.claims.reasons import Obstacle, Reason
from dra.gpu.holdings import Holding

_LIMIT = 1000
_EXPLAINED = 8
_TOLD_NODES = 8
"""Of so many nodes that suit the pod it is told GPU by GPU who is in the way; a message has no room
for more."""
_NAMED_NODES = 3
_NAMED_HOLDERS = 4
_PROFILE = re.compile(r"['\"](\d+g\.\d+gb[\w.+-]*)['\"]")


def explain(
    problem: Problem, allocator: Allocator, fleet: Fleet, delegated: AbstractSet[str] = frozenset()
) -> Obstacle:
    """What keeps ``problem`` from being solved now. Only for problems that were not solved.

    Of several alternatives it is about the first that could be served at another time.
    """
    if fleet.nodes and is_view(problem):
        return explain_view(problem, allocator, fleet, delegated)
    if not fleet.nodes:
        others = _schedulers(fleet) or " (there is no MigNode)"
        return Obstacle(Reason.WAITING, f"no node has GPUs that this controller allocates{others}")
    first: Obstacle | None = None
    for claims in islice(choices(problem.claims), _EXPLAINED):
        chosen = replace(problem, claims=claims)
        found = _explain_chosen(chosen, allocator, fleet, delegated)
        first = first or found
        if found.reason is Reason.WAITING:
            first = found
            break
    if first is not None and allocator.gave_up(problem):
        return Obstacle(
            Reason.UNSUPPORTED,
            f"{_too_hard(problem)}; as far as is known: {first.message}"[:_LIMIT],
        )
    number = prod(len(a) for c in problem.claims for a in c.choices)
    if first is None or number == 1:
        return first or Obstacle(Reason.WAITING, "nothing is asked for")
    others = "no other alternative fits either"
    if number > MAX_CHOICES:
        others = (
            f"of {number} combinations of alternatives the first {MAX_CHOICES} were tried: "
            "state fewer alternatives, or put requests into claims of other pods"
        )
    return replace(first, message=f"{first.message}; {others}")


def _too_hard(problem: Problem) -> str:
    wanted = sum(len(claim.choices) for claim in problem.claims)
    return (
        f"the search for devices that serve the pod's {wanted} requests together was given up, "
        f"after {MOST_STEPS} steps: make the requests more alike (by count), name one profile in "
        "each, or put those that need not be on one node into claims of other pods"
    )


def _explain_chosen(
    problem: Problem, allocator: Allocator, fleet: Fleet, delegated: AbstractSet[str]
) -> Obstacle:
    search = Search(problem, fleet)
    impossible = _unmatched(search, fleet) or _overlapping(search, fleet)
    if impossible is not None:
        return impossible
    texts: dict[str, list[str]] = {}
    briefs = _Briefs(search)
    told = 0
    for name in sorted(fleet.nodes):
        text, node = allocator.node_misfit(problem, name, delegated), fleet.nodes[name]
        if not text and told < _TOLD_NODES:
            text, told = _on_node(search, node), told + 1
        elif not text:
            text = briefs.of(node)
        texts.setdefault(text, []).append(name)
    message = _joined(texts, len(fleet.nodes))
    return Obstacle(Reason.WAITING, message + _schedulers(fleet))


def _unmatched(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want that no GPU of the fleet could ever serve."""
    states = [state for node in fleet.nodes.values() for state in node.gpus]
    for index, group in enumerate(search.wants):
        failure = Match(())
        for state in states:
            match = search.match(state, index)
            if match.offers:
                break
            failure = failure if failure.error else match
        else:
            return _impossible(search, index, failure, fleet, group[0].want.request)
    return None


def _overlapping(search: Search, fleet: Fleet) -> Obstacle | None:
    """The first want of everything that no node could ever serve."""
    for index, kind in enumerate(search.types):
        if not kind.everything:
            continue
        counts = [
            all_of([search.match(state, index).offers for state in node.gpus])
            for node in fleet.nodes.values()
        ]
        counts = [n for n in counts if n != 0]
        who = f"request {search.wants[index][0].want.request!r}: allocationMode All"
        if all(n is None for n in counts):
            return Obstacle(
                Reason.UNSUPPORTED,
                f"{who} of slices that overlap: they cannot all exist at once; ask for one profile "
                "(such as class mig-1g.5gb), for whole GPUs (class gpu.dra.dev), or for a count",
            )
        if all(n is None or n > MAX_RESULTS for n in counts):
            least = min(n for n in counts if n is not None)
            return Obstacle(
                Reason.UNSUPPORTED,
                f"{who} means {least} devices or more on every node, a claim holds at most "
                f"{MAX_RESULTS}; ask for a count",
            )
    return None


def _impossible(search: Search, index: int, failure: Match, fleet: Fleet, request: str) -> Obstacle:
    offered = sorted(fleet.profiles(), key=_profile_order)
    have = f"profiles are: {', '.join(offered)}" if offered else "no GPU is in MIG mode"
    expressions = " ".join(search.types[index].expressions)
    asked = _PROFILE.findall(expressions)
    if "memory" in expressions:
        have += _largest(fleet)
    unknown = sorted(set(asked) - set(offered))
    if unknown:
        message = f"request {request!r}: no node offers profile {', '.join(unknown)}; {have}"
        return Obstacle(Reason.NO_SUCH_PROFILE, message)
    if failure.error:
        message = f"request {request!r}: no device is selected; a selector failed: {failure.error}"
        reason = Reason.COSTLY_SELECTOR if failure.costly else Reason.BAD_SELECTOR
        return Obstacle(reason, message)
    if others := _schedulers(fleet):
        return Obstacle(
            Reason.WAITING,
            f"request {request!r}: no node that this controller allocates offers a device that its "
            f"selectors select{others}",
        )
    return Obstacle(
        Reason.NO_SUCH_PROFILE,
        f"request {request!r}: no node offers a device that its selectors select; {have}",
    )


def _schedulers(fleet: Fleet) -> str:
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


def _on_node(search: Search, node: NodeGpus) -> str:
    if not node.gpus:
        return "no GPU"
    texts: dict[str, list[str]] = {}
    room_for: set[int] = set()
    for state in node.gpus:
        missing = [i for i in search.indices if not search.has_room(state, i)]
        room_for |= set(search.indices) - set(missing)
        text = _on_gpu(search, state, missing)
        if text:
            texts.setdefault(text, []).append(state.gpu.name)
    if len(room_for) == len(search.types):
        told = _not_together(search, node)
        lacking = [f"{', '.join(gpus)} {text}" for text, gpus in texts.items()]
        everything = any(kind.everything for kind in search.types)
        return "; ".join([told, *(lacking if everything else [])])
    return "; ".join(f"{', '.join(gpus)} {text}" for text, gpus in texts.items())


class _Briefs:
    """What is told of nodes without room to say more: no GPUs and no claims are named."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._nodes: dict[int, str] = {}
        self._gpus: dict[object, tuple[list[int], str]] = {}

    def of(self, node: NodeGpus) -> str:
        """Why ``node`` does not serve the search now; kept for nodes of its shape."""
        if not self._search.by_shape:
            return self._told(node)
        if node.shape not in self._nodes:
            self._nodes[node.shape] = self._told(node)
        return self._nodes[node.shape]

    def _told(self, node: NodeGpus) -> str:
        gpus = [self._gpu(state) for state in node.gpus]
        lacking = set.intersection({*self._search.indices}, *(missing for missing, _ in gpus))
        if gpus and not lacking:
            return _not_together(self._search, node)
        return "; ".join(dict.fromkeys(text for _, text in gpus if text)) or "no GPU"

    def _gpu(self, state: GpuState) -> tuple[list[int], str]:
        key = state.form if self._search.by_shape else state.id
        if key not in self._gpus:
            missing = [i for i in self._search.indices if not self._search.has_room(state, i)]
            self._gpus[key] = missing, _on_gpu(self._search, state, missing, naming=False)
        return self._gpus[key]


def _not_together(search: Search, node: NodeGpus) -> str:
    wanted = ", ".join(_wanted(search, node, i) for i in search.indices)
    bound = "".join(
        f" with {'different' if c.distinct else 'the same'} {c.attribute}"
        for c in search.constraints
    )
    return f"no room for {wanted} together{bound}"


def _on_gpu(search: Search, state: GpuState, missing: list[int], *, naming: bool = True) -> str:
    """Why a GPU gives nothing for the wants ``missing``, ``naming`` who is in the way."""
    if state.blocked:
        return state.blocked
    if not missing:
        return ""
    matching = {i: search.match(state, i).offers for i in missing}
    offers = [o for group in matching.values() for o in group]
    if not offers:
        return "has no such device" if state.gpu.mig_enabled else "has no such device (MIG is off)"
    holders = _blockers(state, offers) if naming else []
    blocked_by = f" (blocked by {_listed(holders, search.namespace)})" if holders else ""
    return f"no room for {_names(offers)}{blocked_by}"


def _listed(holders: list[Holding], namespace: str) -> str:
    """``claims default/a, default/b, foreign instance at 0:4 and 3 more``.

    Claims of other namespaces than ``namespace`` are counted only: who reads the event may not know
    of them. ``kubectl mig explain`` names them, to whom may read them.
    """
    own = [h.holder for h in holders if h.claim_uid and h.namespace == namespace]
    others = {h.claim_uid for h in holders if h.claim_uid and h.namespace != namespace}
    names = list(dict.fromkeys([*own, *(h.holder for h in holders if not h.claim_uid)]))
    kind = {0: "", 1: "claim "}.get(len(set(own)), "claims ")
    more = f" and {len(names) - _NAMED_HOLDERS} more" if len(names) > _NAMED_HOLDERS else ""
    told = [f"{kind}{', '.join(names[:_NAMED_HOLDERS])}{more}"] if names else []
    if others:
        claims = "claim" if len(others) == 1 else "claims"
        told.append(f"{len(others)} {claims} of other namespaces")
    return " and ".join(told)


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
    number = "all" if search.types[index].everything else search.target[index]
    return f"{number} x {_names(offers.values())}"


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
