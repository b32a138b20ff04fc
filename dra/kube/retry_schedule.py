"""Schedule of retries for what something outside this program did not do."""

from __future__ import annotations

from dra.kube.timing import Backoff, Clock


class RetrySchedule:
    """Growing pauses: even ones would switch for ever where several API servers disagree."""

    def __init__(self, clock: Clock, *, first: float, longest: float) -> None:
        self._clock = clock
        self._backoff = Backoff(first=first, limit=longest, jitter=0.0)
        self._pause = 0.0
        self._at = 0.0

    def give_up(self) -> None:
        """Records that it was refused: the next pause is twice the last one."""
        self._pause = self._backoff.next_delay()
        self.postpone()

    def postpone(self) -> None:
        """Records that the feature is still unsupported: the same pause begins again."""
        self._at = self._clock.monotonic() + self._pause

    def due(self) -> float:
        """Seconds until the next retry is due."""
        return max(0.0, self._at - self._clock.monotonic())
