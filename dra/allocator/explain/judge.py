"""The judgement why a problem is not solved, for events, conditions and the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from math import prod

from dra.allocator.admin_access import looks_only
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import Detail, Explanation, NodeAnswer
from dra.allocator.explain.impossible import about_schedulers, find_impossible
from dra.allocator.explain.nodes import NodeAnswers
from dra.allocator.explain.views import explain_view
from dra.allocator.problem import GivenUp, Problem
from dra.allocator.search.search import Search
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import MAX_CHOICES, choices
from dra.pods.nodefit import Misfit

_EXPLAINED = 8
_TOLD_NODES = 8
"""Nodes of an event that are told GPU by GPU; a message has no room for more."""


def explain(
    problem: Problem,
    allocator: Allocator,
    *,
    given_up: GivenUp | None = None,
    detail: Detail = Detail.EVENT,
) -> Explanation:
    """Obstacles that keep ``problem`` from being solved; ``given_up`` is that of its ``Outcome``.

    Of several alternatives the answer is about the first that could be served at another time; in
    full detail about the first that a node could serve now, if there is one.

    Raises:
        SelectorError: a selector does not compile.
        UnansweredError: a selector is still to be evaluated.
    """
    namespace, fleet = problem.pod.key[0], allocator.fleet
    if not fleet.nodes:
        others = about_schedulers(fleet) or " (there is no MigNode)"
        text = f"no node has GPUs that this controller allocates{others}"
        return Explanation(namespace, Obstacle(Reason.WAITING, text))
    if looks_only(problem):
        return explain_view(problem, allocator)
    found = _first(_alternatives(problem, allocator, detail), detail)
    if detail is Detail.FULL and found.fits:
        return found
    if given_up is not None:
        return replace(found, given_up=_about_steps(problem, given_up))
    return replace(found, others=_about_others(problem))


def _first(found: Iterable[Explanation], detail: Detail) -> Explanation:
    """The explanation of the alternative that is told of."""
    first: Explanation | None = None
    waiting: Explanation | None = None
    for each in found:
        if detail is Detail.FULL and each.fits:
            return each
        first = first or each
        if each.obstacle is None or each.obstacle.reason is Reason.WAITING:
            waiting = waiting or each
            if detail is not Detail.FULL:
                break
    return waiting or first or Explanation("")


def _alternatives(problem: Problem, allocator: Allocator, detail: Detail) -> Iterable[Explanation]:
    most = None if detail is Detail.FULL else _EXPLAINED
    misfits: dict[str, Misfit | None] = {}
    for claims in islice(choices(problem.claims), most):
        chosen = replace(problem, claims=claims)
        yield _explain_chosen(chosen, allocator, detail, misfits)


def _about_others(problem: Problem) -> str:
    number = prod(len(a) for c in problem.claims for a in c.choices)
    if number == 1:
        return ""
    if number > MAX_CHOICES:
        return (
            f"of {number} combinations of alternatives the first {MAX_CHOICES} were tried: "
            "state fewer alternatives, or put requests into claims of other pods"
        )
    return "no other alternative fits either"


def _about_steps(problem: Problem, given_up: GivenUp) -> str:
    wanted = sum(len(claim.choices) for claim in problem.claims)
    return f"the search for devices that serve the pod's {wanted} requests together was {given_up}"


def _explain_chosen(
    problem: Problem, allocator: Allocator, detail: Detail, fit: dict[str, Misfit | None]
) -> Explanation:
    """The explanation of one alternative; ``fit`` is filled with the misfits.

    They are equal for all, unless some are to share a device in a way that others are not.
    """
    namespace, full, fleet = problem.pod.key[0], detail is Detail.FULL, allocator.fleet
    search = Search(problem, fleet)
    impossible = find_impossible(search, fleet)
    if impossible is not None and not full:
        return Explanation(namespace, impossible)
    found: dict[str, NodeAnswer] = {}
    misfits: dict[Misfit, NodeAnswer] = {}
    answers = NodeAnswers(search, fleet.kinds, detail)
    told = 0
    if not fit or any(claim.sharing for claim in problem.claims):
        for name in sorted(fleet.nodes):
            fit[name] = allocator.find_misfit(problem, name)
    for name, misfit in fit.items():
        node = fleet.nodes[name]
        if misfit is not None:
            known = misfits.get(misfit)
            if known is None:
                gpus = answers.of(node).gpus if full else ()
                known = NodeAnswer(misfit.reason, misfit.message, gpus)
                if not full:
                    misfits[misfit] = known
            found[name] = known
        elif full or told < _TOLD_NODES:
            found[name], told = answers.of(node), told + 1
        else:
            found[name] = answers.brief(node)
    return Explanation(namespace, impossible, found, schedulers=about_schedulers(fleet))
