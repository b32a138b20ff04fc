"""When to find out again whether what was given up is possible after all."""

from __future__ import annotations

from dra.kube.timing import Clock

FIRST_SECONDS = 600.0
"""Feature gates change with a restart of the API server: that is seldom, and nothing is urgent."""

_LONGEST_SECONDS = 4 * 3600.0


class RetrySchedule:
    """Ever more seldom: where several API servers disagree, it would go back and forth for ever."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pause = 0.0
        self._at = 0.0

    def gave_up(self) -> None:
        """It turned out impossible: it is left alone for twice as long as the time before."""
        self._pause = min(max(FIRST_SECONDS, 2 * self._pause), _LONGEST_SECONDS)
        self.later()

    def later(self) -> None:
        """It still is impossible."""
        self._at = self._clock.monotonic() + self._pause

    def due(self) -> float:
        """Seconds until it is to be tried again."""
        return max(0.0, self._at - self._clock.monotonic())
