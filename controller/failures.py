"""What did not fit is not tried again for an equal pod until something becomes free."""

from __future__ import annotations

import json
from collections.abc import Hashable

from controller.decision import Problem
from dra.podneeds import PodNeeds
from dra.reasons import Obstacle


class Failures:
    """Obstacles by what was asked for, as of the last time that room was made."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Obstacle] = {}

    def forget(self) -> None:
        """Something became free, or a node was added or changed."""
        self._known.clear()

    def get(self, problem: Problem) -> Obstacle | None:
        """Why an equal problem failed, None when none did."""
        key = alike(problem)
        return None if key is None else self._known.get(key)

    def add(self, problem: Problem, obstacle: Obstacle) -> None:
        """``problem`` failed."""
        key = alike(problem)
        if key is not None:
            self._known[key] = obstacle


def alike(problem: Problem) -> Hashable | None:
    """Equal for problems that fail alike; None for one that is tied to what its pod has already."""
    if problem.pins:
        return None
    claims = tuple(
        (
            tuple(
                tuple(
                    (w.request, w.expressions, w.count, w.everything, w.admin) for w in alternatives
                )
                for alternatives in claim.choices
            ),
            tuple((c.attribute, c.requests, c.distinct) for c in claim.constraints),
        )
        for claim in problem.claims
    )
    return claims, _needs(problem.pod.needs), frozenset(problem.excluded), problem.pod.node


def _needs(needs: PodNeeds) -> str:
    parts = [needs.requests, needs.node_selector, needs.affinity_terms, needs.tolerations]
    return json.dumps(parts, sort_keys=True)
