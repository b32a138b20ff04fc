"""Time as the transport's loops see it: a clock to inject, and exponential backoff."""

import random
import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of time for loops."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def now(self) -> datetime:
        """Wall-clock time (UTC), for timestamps that people read."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until the event is set (True) or the seconds are over (False)."""

    def sleep(self, seconds: float) -> None:
        """Sleep for these seconds, whatever happens meanwhile."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds of :func:`time.monotonic`."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait on the event itself, so that setting it ends the sleep at once."""
        return event.wait(max(0.0, seconds))

    def sleep(self, seconds: float) -> None:
        """Sleep as :func:`time.sleep` does."""
        time.sleep(max(0.0, seconds))


class Backoff:
    """Exponential delays in seconds: the n-th is ``first * 2**n``, ``limit`` at most.

    ``jitter`` is the part of each delay that is left to chance: with 0 all are exact, with 1/2 each
    is drawn from its upper half. Not thread-safe; every user has its own.
    """

    __slots__ = ("_first", "_jitter", "_limit", "_rng", "failures")

    def __init__(
        self,
        *,
        first: float = 0.2,
        limit: float = 30.0,
        jitter: float = 0.5,
        rng: random.Random | None = None,
    ) -> None:
        self._first = first
        self._limit = limit
        self._jitter = jitter
        self._rng = rng
        self.failures = 0

    def reset(self) -> None:
        """Start over, after progress."""
        self.failures = 0

    def next_delay(self, *, at_least: float | None = None) -> float:
        """Count a failure and return the seconds to wait (not less than ``at_least``)."""
        # The exponent is bounded, so that years of failures do not overflow.
        delay = min(self._limit, self._first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        if self._jitter:
            if self._rng is None:
                # Made at the first failure: a Random weighs 2.5 KB, and most users never fail.
                self._rng = random.Random()  # noqa: S311 - no secret
            delay = self._rng.uniform(delay * (1 - self._jitter), delay)
        return max(at_least or 0.0, delay)


def rfc3339(moment: datetime) -> str:
    """A ``metav1.Time``: whole seconds, UTC."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def rfc3339_micro(moment: datetime) -> str:
    """A ``metav1.MicroTime``: microseconds, UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_since(stamp: str, now: datetime) -> float | None:
    """Seconds from a ``metav1.Time`` to ``now``, not less than 0; None if it cannot be read."""
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return max(0.0, (now - then).total_seconds()) if then.tzinfo else None
