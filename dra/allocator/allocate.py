"""The allocator: which node, which GPUs, which placements serve all claims of a pod together."""

from __future__ import annotations

from dra.allocator.admin_access import looks_only, picks_on
from dra.allocator.fleet.view import FleetView
from dra.allocator.ongoing import OngoingDecision
from dra.allocator.places import Places
from dra.allocator.problem import Decision, Outcome, Problem
from dra.allocator.search.budget import Budget
from dra.allocator.search.search import Search
from dra.claims.requests.alternatives import choices


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

    def could_serve(self, problem: Problem, node: str) -> bool:
        """True if ``node`` alone has what is asked for now, and where that is too hard to tell.

        Raises as ``decide``.
        """
        known = self.fleet.nodes.get(node)
        if known is None or self.find_misfit(problem, node) is not None:
            return False
        if looks_only(problem):
            return picks_on(problem, known, self.fleet.kinds) is not None
        for claims in choices(problem.claims):
            budget = Budget()
            search = Search(problem, self.fleet, budget, claims=claims)
            if search.solution(known.gpus) is not None or budget.too_hard:
                return True
        return False

    def outcome(self, problem: Problem) -> Outcome:
        """Decision as of ``decide``, and where there is none, whether for want of steps."""
        found = OngoingDecision(problem).go_on(self)
        if found is None:
            raise AssertionError("without a bound on its steps a decision is made in one go")
        return found
