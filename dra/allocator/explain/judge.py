"""The judgement why a problem is not solved, for events, conditions and the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from dra.allocator.admin_access import looks_only, picks_on
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import AnswerReason, Explanation, GpuAnswer, NodeAnswer
from dra.allocator.explain.gpus import answer_gpu, lacks_mig_mode, names
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.problem import GivenUp, Problem
from dra.allocator.search.constraints import all_of
from dra.allocator.search.search import Search
from dra.cel.kinds import Match
from dra.cel.offers import GpuKind
from dra.claims.allocation import MAX_RESULTS
from dra.claims.classes import GPU_CLASS, NVIDIA_GPU_CLASS, SHARE_CLASS, SLICE_SHARE_CLASS
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import Choices, Want
from dra.pods.nodefit import Misfit

_PROFILE = re.compile(r"['\"](\d+g\.\d+gb[\w.+-]*)['\"]")


_OF_GPUS = frozenset({GPU_CLASS, NVIDIA_GPU_CLASS, SHARE_CLASS})
"""Classes of devices that GPUs offer whose MIG mode is off."""


def _find_impossible(search: Search, fleet: Fleet) -> Obstacle | None:
    """Reason why no node of ``fleet`` could ever serve ``search``; None where one could."""
    return _unmatched(search, fleet) or _overlapping(search, fleet) or _too_many(search, fleet)


def _unmatched(search: Search, fleet: Fleet) -> Obstacle | None:
    """Obstacle about the first want that no GPU of the fleet could ever serve."""
    for index, group in enumerate(search.wants):
        failure = Match(())
        for state in (s for node in fleet.nodes.values() for s in node.gpus):
            match = search.match(state, index)
            if match.offers:
                break
            failure = failure if failure.error else match
        else:
            return _impossible(search, index, failure, fleet, group[0].want)
    return None


def _overlapping(search: Search, fleet: Fleet) -> Obstacle | None:
    """Obstacle about the first want of everything that no node could ever serve."""
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
    """Obstacle about the first want of more devices than any node can give.

    Where one GPU is to give all: than any GPU can give.
    """
    known: dict[GpuKind, int] = {}

    def most_of(state: GpuState, index: int) -> int:
        if state.kind not in known or index in search.telling:
            known[state.kind] = _most_of(search, state, index)
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


def _most_of(search: Search, state: GpuState, index: int) -> int:
    """Most devices that a GPU can give; the number wanted where that cannot be told."""
    offers = search.match(state, index).offers
    profiles = [o.profile for o in offers if o.profile is not None]
    geometry = state.gpu.geometry
    if any(o.shared for o in offers):
        return search.target[index]
    if not offers:
        is_unknown = geometry is None or lacks_mig_mode(search, state, index)
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


def _impossible(search: Search, index: int, failure: Match, fleet: Fleet, want: Want) -> Obstacle:
    request, gpus = (
        want.request,
        [state.gpu for node in fleet.nodes.values() for state in node.gpus],
    )
    if ".shares." in " ".join(want.expressions):
        message = (
            f"request {request!r} asks for the capacity shares, as of NVIDIA's driver, which no "
            f"device has here: ask for memory and cores, by the class {SHARE_CLASS} or "
            f"{SLICE_SHARE_CLASS}"
        )
        return Obstacle(Reason.UNSUPPORTED, message)
    if want.class_name in _OF_GPUS and not failure.error:
        shares = want.class_name == SHARE_CLASS
        whole = [gpu for gpu in gpus if not gpu.mig_enabled and (gpu.shares or not shares)]
        kinds = ", ".join(sorted({gpu.product_name for gpu in whole})) or "none"
        where = " on nodes that give shares (--gpu-shares)" * shares
        message = (
            f"request {request!r}: no node offers a GPU that its selectors select; GPUs whose MIG "
            f"mode is off{where} are: {kinds}"
        )
        return Obstacle(Reason.NO_SUCH_PROFILE, message)
    offered = sorted(fleet.profiles(), key=_profile_order)
    have = f"profiles are: {', '.join(offered)}" if offered else "no GPU is in MIG mode"
    expressions = " ".join(search.types[index].expressions)
    asked = _PROFILE.findall(expressions)
    if "memory" in expressions:
        have += _largest(fleet)
    unknown = sorted(set(asked) - set(offered))
    states = (state for node in fleet.nodes.values() for state in node.gpus)
    is_off = any(lacks_mig_mode(search, state, index) for state in states)
    reason = Reason.MIG_OFF if is_off else Reason.NO_SUCH_PROFILE
    if offered and is_off:
        have += "; GPUs whose MIG mode is off may have it"
    if unknown:
        message = f"request {request!r}: no node offers profile {', '.join(unknown)}; {have}"
        return Obstacle(reason, message)
    if failure.error:
        message = f"request {request!r}: no device is selected; a selector failed: {failure.error}"
        return Obstacle(Reason.COSTLY_SELECTOR if failure.costly else Reason.BAD_SELECTOR, message)
    return Obstacle(
        reason,
        f"request {request!r}: no node offers a device that its selectors select; {have}",
    )


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


_NEVER_OR_NOW = (AnswerReason.NO_SUCH_DEVICE, AnswerReason.FITS)
_NO_GPU = NodeAnswer(AnswerReason.NO_SUCH_DEVICE, "no GPU")


class _Answers:
    """Answers to one search; brief ones are kept for nodes whose GPUs are in equal states.

    ``full``: as ``answer_gpu`` has it.
    """

    def __init__(self, search: Search, *, full: bool) -> None:
        self._search = search
        self._full = full
        self._gpus: dict[object, tuple[list[int], GpuAnswer]] = {}
        self._alike: dict[frozenset[object], NodeAnswer] = {}
        """By the set of fingerprints of a node's GPUs: brief answers do not tell their number."""

    def of(self, node: NodeGpus) -> NodeAnswer:
        """Answer of ``node``, GPU by GPU: why it does not serve now, and what is in the way."""
        return self._answer(node, [self._gpu(state) for state in node.gpus])

    def brief(self, node: NodeGpus) -> NodeAnswer:
        """As ``of``, without names of GPUs and claims, for messages with no room for more."""
        if not self._search.by_fingerprint:
            return self._answer(node, [self._nameless(state) for state in node.gpus])
        fingerprints = frozenset(node.fingerprints)
        if fingerprints not in self._alike:
            found = [self._nameless(state) for state in node.gpus]
            self._alike[fingerprints] = self._answer(node, found)
        return self._alike[fingerprints]

    def _gpu(self, state: GpuState) -> tuple[list[int], GpuAnswer]:
        """The types of which a GPU has no room for any, and its answer."""
        missing = [i for i in self._search.indices if not self._search.has_room(state, i)]
        return missing, answer_gpu(self._search, state, missing, full=self._full)

    def _nameless(self, state: GpuState) -> tuple[list[int], GpuAnswer]:
        key = state.fingerprint if self._search.by_fingerprint else state.id
        if key not in self._gpus:
            missing, found = self._gpu(state)
            self._gpus[key] = missing, GpuAnswer("", found.reason, found.message)
        return self._gpus[key]

    def _answer(self, node: NodeGpus, found: Sequence[tuple[list[int], GpuAnswer]]) -> NodeAnswer:
        if not found:
            return _NO_GPU
        search = self._search
        gpus = tuple({(g.name, g.message): g for _, g in found}.values())
        if set.intersection(*({*missing} for missing, _ in found)):
            # The commonest reason among the GPUs that could give what is missing another time.
            able = [g.reason for g in gpus if g.reason not in _NEVER_OR_NOW]
            reason = max(dict.fromkeys(able), key=able.count, default=AnswerReason.NO_SUCH_DEVICE)
            return NodeAnswer(reason, "", gpus)
        if self._full and search.solution(node.gpus) is not None:
            return NodeAnswer(AnswerReason.FITS, "", gpus)
        is_told = self._full or (gpus[0].name and any(kind.everything for kind in search.types))
        wanted = ", ".join(self._wanted(node, i) for i in search.indices)
        bound = "".join(
            f" with {'different' if c.distinct else 'the same'} {c.attribute}"
            for c in search.constraints
        )
        message = f"no room for {wanted} together{bound}"
        return NodeAnswer(AnswerReason.NO_ROOM_TOGETHER, message, gpus if is_told else ())

    def _wanted(self, node: NodeGpus, index: int) -> str:
        offers = {o.name: o for s in node.gpus for o in self._search.match(s, index).offers}
        everything = self._search.types[index].everything
        number = "all" if everything else self._search.target[index]
        return f"{number} x {names(offers.values())}"


_LOOKS = NodeAnswer(AnswerReason.FITS)
_TOO_FEW = NodeAnswer(AnswerReason.NO_SUCH_DEVICE, "has fewer GPUs to look at than are asked for")


def _explain_view(problem: Problem, allocator: Allocator) -> Explanation:
    """Explanation of a problem that only looks (``adminAccess``): what each node has to look at."""
    nodes: dict[str, NodeAnswer] = {}
    fleet = allocator.fleet
    misfits: list[str] = []
    for name in sorted(fleet.nodes):
        if picks_on(problem, fleet.nodes[name], fleet.kinds) is None:
            nodes[name] = _TOO_FEW
            continue
        misfit = allocator.find_misfit(problem, name)
        nodes[name] = _LOOKS if misfit is None else NodeAnswer(misfit.reason, misfit.message)
        misfits += [f"{name}: {misfit.message}"] if misfit is not None else []
    namespace = problem.pod.key[0]
    if any(answer.fits for answer in nodes.values()):
        return Explanation(namespace, nodes=nodes)
    text = "; ".join(misfits)[:1000] or (
        "adminAccess looks at whole GPUs, through which their slices are seen, and no node has as "
        "many as are asked for; use class gpu.dra.dev, and allocationMode All or a smaller count"
    )
    return Explanation(namespace, Obstacle(Reason.NOTHING_TO_SEE, text), nodes)


_EXPLAINED = 8
_TOLD_NODES = 8
"""Nodes of an event that are told GPU by GPU; a message has no room for more."""


def explain(
    problem: Problem,
    allocator: Allocator,
    *,
    given_up: GivenUp | None = None,
    full: bool = False,
) -> Explanation:
    """Obstacles that keep ``problem`` from being solved; ``given_up`` is that of its ``Outcome``.

    ``full``: every blocker on every node, and the nodes that would do; else what a message of 1,000
    characters about an unsolved problem has room for. Of several alternatives the answer is about
    the first that could be served at another time; if ``full``, about the first that a node could
    serve now, if there is one.

    Raises:
        SelectorError: a selector does not compile.
        UnansweredError: a selector is still to be evaluated.
    """
    namespace, fleet = problem.pod.key[0], allocator.fleet
    if not fleet.nodes:
        text = "no node has GPUs that this controller allocates (there is no MigNode)"
        return Explanation(namespace, Obstacle(Reason.WAITING, text))
    if looks_only(problem):
        return _explain_view(problem, allocator)
    found: list[Explanation] = []
    misfits: dict[str, Misfit | None] = {}
    alternatives = Choices(problem.claims, fleet.kinds.selected)
    for claims in islice(alternatives, None if full else _EXPLAINED):
        each = _explain_chosen(replace(problem, claims=claims), allocator, misfits, full=full)
        if full and each.fits:
            return each
        found.append(each)
        if not full and _may_be_served(each):
            break
    shown = next(filter(_may_be_served, found), found[0] if found else Explanation(namespace))
    if given_up is not None:
        return replace(shown, given_up=_about_steps(problem, given_up))
    return replace(shown, others=_about_others(problem))


def _may_be_served(found: Explanation) -> bool:
    """True if what is explained could be served at another time."""
    return found.obstacle is None or found.obstacle.reason is Reason.WAITING


def _about_others(problem: Problem) -> str:
    is_one = all(len(a) == 1 for c in problem.claims for a in c.choices)
    return "" if is_one else "no other alternative fits either"


def _about_steps(problem: Problem, given_up: GivenUp) -> str:
    wanted = sum(len(claim.choices) for claim in problem.claims)
    return f"the search for devices that serve the pod's {wanted} requests together was {given_up}"


def _explain_chosen(
    problem: Problem, allocator: Allocator, fit: dict[str, Misfit | None], *, full: bool
) -> Explanation:
    """The explanation of one alternative; ``fit`` is filled with the misfits by node.

    These are the same for all alternatives, unless some are to share devices in another way.
    """
    namespace, fleet = problem.pod.key[0], allocator.fleet
    search = Search(problem, fleet)
    impossible = _find_impossible(search, fleet)
    if impossible is not None and not full:
        return Explanation(namespace, impossible)
    found: dict[str, NodeAnswer] = {}
    misfits: dict[Misfit, NodeAnswer] = {}
    answers = _Answers(search, full=full)
    told = 0
    if not fit or any(claim.sharing for claim in problem.claims):
        for name in sorted(fleet.nodes):
            fit[name] = allocator.find_misfit(problem, name)
    for name, misfit in fit.items():
        node = fleet.nodes[name]
        if misfit is not None and full:
            found[name] = NodeAnswer(misfit.reason, misfit.message, answers.of(node).gpus)
        elif misfit is not None:
            alone = NodeAnswer(misfit.reason, misfit.message)
            found[name] = misfits.setdefault(misfit, alone)  # one object for equal answers
        elif full or told < _TOLD_NODES:
            found[name], told = answers.of(node), told + 1
        else:
            found[name] = answers.brief(node)
    return Explanation(namespace, impossible, found)
