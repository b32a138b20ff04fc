"""Time: a clock to inject, pauses that grow with each failure, and time stamps of Kubernetes."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
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
    """Pauses that grow with each failure: the n-th is ``first * 2**n`` seconds, at most ``limit``.

    ``jitter`` is the random share of each pause: 0 makes pauses exact, 1/2 draws each from the
    upper half of its length. Not thread-safe; every user has its own.

    Attributes:
        failures: failures in a row.
        until: monotonic time at which the pause ends, as :meth:`fail` or :meth:`postpone` set it.
    """

    __slots__ = ("_delay", "_first", "_jitter", "_limit", "failures", "until")

    def __init__(self, *, first: float = 0.2, limit: float = 30.0, jitter: float = 0.5) -> None:
        self._first = first
        self._limit = limit
        self._jitter = jitter
        self._delay = 0.0
        self.failures = 0
        self.until = 0.0

    def reset(self) -> None:
        """Start over, after progress."""
        self.failures = 0

    def next_delay(self, *, at_least: float | None = None) -> float:
        """Count a failure and return the seconds to wait (not less than ``at_least``)."""
        # The exponent is bounded, so that years of failures do not overflow.
        delay = min(self._limit, self._first * 2.0 ** min(self.failures, 32))
        self.failures += 1
        if self._jitter:
            delay = random.uniform(delay * (1 - self._jitter), delay)  # noqa: S311 - no secret
        self._delay = max(at_least or 0.0, delay)
        return self._delay

    def fail(self, now: float) -> None:
        """Count a failure at the monotonic time ``now``, from which the next pause begins."""
        self.next_delay()
        self.postpone(now)

    def postpone(self, now: float) -> None:
        """Begin the same pause again."""
        self.until = now + self._delay

    def left(self, now: float) -> float:
        """Seconds of the pause that are left."""
        return max(0.0, self.until - now)


@dataclass(slots=True)
class TokenBucket:
    """Allowance of ``burst`` uses at once, and of one more every ``refill_seconds``."""

    burst: int
    refill_seconds: float
    _tokens: float = 0.0
    _filled_at: float = -inf

    def take(self, now: float) -> bool:
        """Spend one token; False when there is none. ``now`` is monotonic seconds."""
        gained = (now - self._filled_at) / self.refill_seconds
        self._tokens = min(float(self.burst), self._tokens + gained)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


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
