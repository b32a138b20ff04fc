"""Searches that can be left and taken up again, with other work in between."""

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
