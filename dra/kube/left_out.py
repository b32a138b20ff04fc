"""Pauses of what failed: left out for a while, and for longer each time that it fails again.

What fails once it was let in again stays out twice as long, up to a limit. Without another failure
for as long as the limit it begins anew. What is tried while it is out has it stay out from then on,
for no longer than before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra.kube.timing import Backoff

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
