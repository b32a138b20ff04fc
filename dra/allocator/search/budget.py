"""The budget of one decision: while the controller searches, all other pods wait."""

from __future__ import annotations

MOST_STEPS = 100_000
"""A second of work; what people ask for takes tens of steps, or some thousands."""


class TooHardError(Exception):
    """It was given up; whether there is a solution is not known."""


class Effort:
    """What is left of the steps that one decision may take."""

    def __init__(self, steps: int | None = None) -> None:
        self._left = MOST_STEPS if steps is None else steps

    @property
    def exceeded(self) -> bool:
        """Whether something was given up."""
        return self._left < 0

    def spend(self, steps: int) -> None:
        """Raise TooHardError when no steps are left."""
        self._left -= steps
        if self._left < 0:
            raise TooHardError
