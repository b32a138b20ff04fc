"""Time as the transport's loops see it: a clock to inject, and exponential backoff."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar


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


FIRST_SECONDS = 20.0
LONGEST_SECONDS = 600.0

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Failure:
    backoff: Backoff
    until: float = 0.0
    pause: float = 0.0
    is_out: bool = False


class LeftOut(Generic[K]):
    """Keys that failed. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures: dict[K, _Failure] = {}

    @property
    def due(self) -> float | None:
        """The monotonic time at which the next key is let in again, or forgotten; None if none."""
        ends = (f.until if f.is_out else f.until + LONGEST_SECONDS for f in self._failures.values())
        return min(ends, default=None)

    def remembers(self, key: K) -> bool:
        """True if the key failed, and not long ago."""
        return key in self._failures

    def fail(self, key: K) -> None:
        """Leave a key out that has failed."""
        failure = self._failures.get(key)
        if failure is None:
            backoff = Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
            failure = self._failures[key] = _Failure(backoff)
        if not failure.is_out:
            failure.pause = failure.backoff.next_delay()
        failure.until = self._now() + failure.pause
        failure.is_out = True

    def expire(self) -> list[K]:
        """Let in again what was out for long enough, and forget what has not failed for long.

        Returns the keys that are in again.
        """
        if not self._failures:
            return []
        now, let_in = self._now(), []
        for key, failure in [*self._failures.items()]:
            if failure.is_out and failure.until <= now:
                failure.is_out = False
                let_in.append(key)
            elif failure.until + LONGEST_SECONDS <= now:
                del self._failures[key]
        return let_in

    def out(self) -> frozenset[K]:
        """The keys that are left out."""
        return frozenset(key for key, failure in self._failures.items() if failure.is_out)

    def remembered(self) -> frozenset[K]:
        """The keys that failed not long ago, out or in again."""
        return frozenset(self._failures)
