"""The allocator: which node, which GPUs, which placements serve all claims of a pod together."""

from __future__ import annotations

from collections.abc import Iterable

from dra.allocator.admin_access import looks_only, picks_on
from dra.allocator.fleet.view import FleetView
from dra.allocator.ongoing import OngoingDecision
from dra.allocator.places import Places
from dra.allocator.problem import Decision, Outcome, Problem
from dra.allocator.search.budget import Budget
from dra.allocator.search.search import Search
from dra.claims.wants import choices

ANSWER_STEPS = 5_000
"""After these it is too hard to tell whether nodes could serve a problem: tens of milliseconds."""

_CHOICE_STEPS = 40
"""Steps to begin with one of several alternatives."""


class Allocator(Places):
    """Decides on the state of its fleet and nodes at the time of the call; changes nothing."""

    def on(self, fleet: FleetView) -> Allocator:
        """The allocator that decides likewise on another fleet, such as one that is supposed."""
        return Allocator(fleet, self.hosts, self.delegated)

    def decide(self, problem: Problem) -> Decision | None:
        """The best allocation, or None when no node has one.

        An earlier alternative of a request goes before anything that speaks for a later one. None
        also where the search was given up: ``outcome`` tells.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        return self.outcome(problem).decision

    def could_serve(self, problem: Problem, nodes: Iterable[str]) -> bool:
        """True if one of ``nodes`` has what is asked for now, and where that is too hard to tell.

        Raises as ``decide``.
        """
        known = {name: self.fleet.nodes[name] for name in nodes if name in self.fleet.nodes}
        fits = [n for name, n in known.items() if self.find_misfit(problem, name) is None]
        if not fits:
            return False
        if looks_only(problem):
            return any(picks_on(problem, node, self.fleet.kinds) is not None for node in fits)
        budget = Budget()
        for claims in choices(problem.claims, self.fleet.kinds.selected):
            search = Search(problem, self.fleet, budget, claims=claims)
            budget.used += _CHOICE_STEPS
            for node in fits:
                budget.used += 1 + search.node_steps * len(node.gpus)
                if search.solution(node.gpus, node.gpu_fingerprints) is not None:
                    return True
                if budget.too_hard or budget.used > ANSWER_STEPS:
                    return True
        return False

    def outcome(self, problem: Problem, *, preempts: bool = False) -> Outcome:
        """Decision as of ``decide``, and where there is none, whether for want of steps.

        With ``preempts`` at last also where kube-scheduler would make room.
        """
        ongoing = OngoingDecision(problem)
        ongoing.preempts = preempts
        found = ongoing.go_on(self)
        if found is None:
            raise AssertionError("without a bound on its steps a decision is made in one go")
        return found
