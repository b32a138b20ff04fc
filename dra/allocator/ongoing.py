"""Searches that can be left and taken up again, with other work in between, and their budgets.

A budget is counted in steps of some microseconds, so that no clock decides what is found.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Generic, TypeVar

R = TypeVar("R")


class Steps:
    """Number of steps that a search has ``used``; its present part ends at ``end``.

    Five thousand steps take some tens of milliseconds.
    """

    def __init__(self) -> None:
        self.used = 0
        self.end = inf

    @property
    def left(self) -> float:
        """Steps that are left of the present part."""
        return self.end - self.used


NODE_STEPS = 10_000
"""Upper bound on the steps for one node; what people ask for takes tens of steps."""

ENOUGH_STEPS = 300_000
"""After these the best node found so far is taken, although others may be better."""

DECISION_STEPS = 3_000_000
"""After these no further node is searched: some seconds of work, done in parts."""


class TooHardError(Exception):
    """A node's steps are used up; whether there is a solution is not known."""


class Budget(Steps):
    """The steps of one decision; ``too_hard`` counts the nodes that were given up."""

    def __init__(self) -> None:
        super().__init__()
        self.too_hard = 0
        self._begun = 0
        self._node_end = NODE_STEPS

    @property
    def is_enough(self) -> bool:
        """True if the best node found so far is good enough."""
        return self.used - self._begun >= ENOUGH_STEPS

    @property
    def is_used_up(self) -> bool:
        """True if no further node is to be searched."""
        return self.used - self._begun >= DECISION_STEPS

    def open_decision(self) -> None:
        """Begin with a decision that has as many steps as the one before."""
        self._begun, self.too_hard = self.used, 0

    def open_node(self) -> None:
        """Begin with a node, which may take ``NODE_STEPS``."""
        self._node_end = self.used + NODE_STEPS

    def spend(self, steps: int) -> None:
        """Count steps for the present node.

        Raises:
            TooHardError: the node has had all of its steps.
        """
        self.used += steps
        if self.used > self._node_end:
            raise TooHardError


class Ongoing(Generic[R]):
    """A search that is made in parts. Not thread-safe.

    ``work``: makes the search; it counts in ``budget``, and yields where it may be left.
    """

    def __init__(self, work: Generator[None, None, R], budget: Steps) -> None:
        self._work = work
        self._budget = budget

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return self._budget.used

    def go_on(self, *, steps: float = inf) -> R | None:
        """Continue; returns None if the search has not ended.

        ``steps``: upper bound for this part, which its last piece of work may exceed. After an
        exception the search must not be continued.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        self._budget.end = self._budget.used + steps
        try:
            self._take_up()
            while self._budget.left > 0:
                next(self._work)
        except StopIteration as ended:
            found: R = ended.value
            return found
        finally:
            self._leave()
        return None

    def finish(self) -> R:
        """Continue to the end. Raises as ``go_on``."""
        found = self.go_on()
        if found is None:
            raise AssertionError("without a bound on its steps a search is made in one go")
        return found

    def _take_up(self) -> None:
        """Begin a part: what the last one found is looked at again."""

    def _leave(self) -> None:
        """End a part."""
