"""A queue of keys to look at, as Kubernetes' controllers use it.

A key that is added while it waits is not queued twice; one that is added while a worker holds it is
queued again when the worker is done, so no two workers ever hold the same key.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)


class WorkQueue:
    """Calls ``handle(key)`` in its workers for every added key.

    ``handle`` returns None when the key needs no more attention, or the seconds after which to look
    again. What it raises is logged, and the key is retried with exponential backoff from
    ``first_retry`` to ``last_retry`` seconds.
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[str], float | None],
        *,
        workers: int = 1,
        first_retry: float = 0.1,
        last_retry: float = 10.0,
    ) -> None:
        self._handle = handle
        self._first_retry = first_retry
        self._last_retry = last_retry
        self._changed = threading.Condition()
        self._ready: dict[str, None] = {}
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._held: set[str] = set()
        self._again: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name} {n}", daemon=True)
            for n in range(workers)
        ]

    def start(self) -> None:
        """Starts the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """Takes no more keys and waits for the workers, at most ``timeout`` seconds together."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def add(self, key: str) -> None:
        """Looks at the key as soon as possible, whatever delay it waits for."""
        with self._changed:
            self._add(key)

    def _add(self, key: str) -> None:
        self._due.pop(key, None)
        if key in self._held:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._changed.notify()

    def _add_after(self, key: str, seconds: float) -> None:
        when = time.monotonic() + max(0.0, seconds)
        if key in self._ready or self._due.get(key, when + 1) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._heap, (when, next(self._order), key))
        self._changed.notify()

    def _work(self) -> None:
        while (key := self._take()) is not None:
            delay = self._attempt(key)
            with self._changed:
                self._held.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self._add(key)
                elif delay is not None:
                    self._add_after(key, delay)

    def _attempt(self, key: str) -> float | None:
        try:
            delay = self._handle(key)
        except Exception:  # noqa: BLE001 - a worker that dies silently is worse
            backoff = self._backoffs.setdefault(
                key, Backoff(first=self._first_retry, limit=self._last_retry)
            )
            delay = backoff.next_delay()
            _log.warning("%s failed, again in %.1f s", key, delay, exc_info=True)
            return delay
        self._backoffs.pop(key, None)
        return delay

    def _take(self) -> str | None:
        """The next key, now held; None when stopping."""
        with self._changed:
            while True:
                if self._stopping:
                    return None
                self._promote()
                if self._ready:
                    key = next(iter(self._ready))
                    del self._ready[key]
                    self._held.add(key)
                    return key
                wait = self._heap[0][0] - time.monotonic() if self._heap else None
                self._changed.wait(wait)

    def _promote(self) -> None:
        """Moves what is due to the ready keys; entries that were overtaken are dropped."""
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == when:
                self._add(key)
