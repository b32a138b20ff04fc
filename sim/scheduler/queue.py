"""Pods that wait for a node: ready, backing off, or until something relevant changes.

As kube-scheduler's queue since 1.33: a pod that was rejected and is worth another try waits for its
back-off only while other pods are ready; after an error it waits in any case.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dra.kube.timing import Backoff

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 10.0
FLUSH_SECONDS = 300.0
"""After this long a rejected pod is tried again although nothing changed."""


def _backoff() -> Backoff:
    return Backoff(first=FIRST_BACKOFF, limit=LAST_BACKOFF, jitter=0)


@dataclass(slots=True)
class _Entry:
    uid: str
    backoff: Backoff = field(default_factory=_backoff)
    ready: bool = True
    failed: bool = False
    rejected_by: frozenset[str] = frozenset()
    not_before: float = 0.0
    flush_at: float = 0.0


class SchedulingQueue:
    """Pods by UID. Thread-safe; one thread takes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._missed: set[str] = set()
        self._aside: set[str] = set()
        self._taken = ""
        self._closed = False

    def add(self, uid: str) -> None:
        """A pod that is to be scheduled; a known one is tried again when its back-off allows."""
        with self._changed:
            entry = self._entries.setdefault(uid, _Entry(uid))
            entry.ready = True
            if uid == self._taken:
                self._missed.add(uid)
            self._changed.notify()

    def remove(self, uid: str) -> None:
        """A pod that needs no node any more."""
        with self._changed:
            self._entries.pop(uid, None)
            self._aside.discard(uid)
            if uid == self._taken:
                self._taken = ""

    def set_aside(self, uid: str) -> None:
        """The taken pod is being bound elsewhere, until it is removed or has failed."""
        with self._changed:
            self._aside.add(uid)
            self._taken = ""

    def wake(self, plugins: Iterable[str], uids: Iterable[str] | None = None) -> None:
        """Something changed for pods that one of ``plugins`` rejected, or for some of them only."""
        wanted = frozenset(plugins)
        with self._changed:
            for uid in self._entries if uids is None else uids:
                entry = self._entries.get(uid)
                if entry is None:
                    continue
                if uid == self._taken:
                    self._missed.add(uid)
                elif entry.rejected_by & wanted:
                    entry.ready = True
            self._changed.notify()

    def reject(self, uid: str, plugins: Iterable[str]) -> None:
        """The taken pod fits nowhere, because of ``plugins``."""
        self._put_back(uid, rejected_by=frozenset(plugins), failed=False)

    def fail(self, uid: str) -> None:
        """Something went wrong with the taken pod, or one set aside: again after its back-off."""
        self._put_back(uid, rejected_by=frozenset(), failed=True)

    def take(self, timeout: float | None = None) -> str | None:
        """The next pod; None after ``timeout`` seconds or when closed."""
        until = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._closed:
                now = self._clock()
                if (entry := self._next(now)) is not None:
                    self._taken = entry.uid
                    self._missed.discard(entry.uid)
                    return entry.uid
                if until is not None and now >= until:
                    return None
                self._changed.wait(self._pause(now, until))
            return None

    def close(self) -> None:
        """Wakes the taker for the last time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put_back(self, uid: str, *, rejected_by: frozenset[str], failed: bool) -> None:
        with self._changed:
            entry = self._entries.get(uid)
            self._aside.discard(uid)
            if uid == self._taken:
                self._taken = ""
            if entry is None:
                return
            now = self._clock()
            entry.failed = failed
            entry.rejected_by = rejected_by
            entry.not_before = now + entry.backoff.next_delay()
            entry.flush_at = now + FLUSH_SECONDS
            # What happened while the pod was looked at may have made it fit.
            entry.ready = failed or uid in self._missed
            self._changed.notify()

    def _next(self, now: float) -> _Entry | None:
        waiting = [e for e in self._here() if e.ready or e.flush_at <= now]
        for entry in waiting:
            if entry.not_before <= now:
                return entry
        return next((entry for entry in waiting if not entry.failed), None)

    def _here(self) -> list[_Entry]:
        return [e for e in self._entries.values() if e.uid not in self._aside]

    def _pause(self, now: float, until: float | None) -> float | None:
        times = [e.not_before if e.ready else e.flush_at for e in self._here()]
        times += [until] if until is not None else []
        return max(0.0, min(times) - now) if times else None
