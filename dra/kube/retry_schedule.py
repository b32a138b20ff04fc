"""Schedule of retries for a feature that something outside this program did not support."""

from __future__ import annotations

from dra.kube.timing import Backoff, Clock

FIRST_SECONDS = 600.0
"""First pause. Feature gates change with a restart of the API server, seldom and not urgently."""

_LONGEST_SECONDS = 4 * 3600.0


class RetrySchedule:
    """Growing pauses: even ones would switch for ever where several API servers disagree."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(first=FIRST_SECONDS, limit=_LONGEST_SECONDS, jitter=0.0)
        self._pause = 0.0
        self._at = 0.0

    def give_up(self) -> None:
        """Records that the feature turned out unsupported: the next pause is twice the last one."""
        self._pause = self._backoff.next_delay()
        self.postpone()

    def postpone(self) -> None:
        """Records that the feature is still unsupported: the same pause begins again."""
        self._at = self._clock.monotonic() + self._pause

    def due(self) -> float:
        """Seconds until the next retry is due."""
        return max(0.0, self._at - self._clock.monotonic())
