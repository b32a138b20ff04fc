"""Code that the stand-ins share: a queue of keys, logging, and a life that ends with a signal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dra.common.program import stop_on_signals
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)


class Service(Protocol):
    """Something with threads of its own."""

    def start(self) -> None:
        """Begins; returns at once."""

    def stop(self) -> None:
        """Ends, within a few seconds."""


def configure_logging(level: str) -> None:
    """One line per message on standard error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )


def run_until_signal(*services: Service) -> None:
    """Starts the services in order; on SIGTERM or SIGINT stops them in reverse order."""
    ended = threading.Event()
    stop_on_signals(ended.set)
    started: list[Service] = []
    try:
        for service in services:
            service.start()
            started.append(service)
        ended.wait()
    finally:
        for service in reversed(started):
            service.stop()


class WorkQueue:
    """A queue of keys to look at, as Kubernetes' controllers use it.

    Calls ``handle(key)`` in its workers for every added key. A key that is added while it waits is
    not queued twice; one that is added while a worker holds it is looked at again when the worker
    is done, so no two workers ever hold the same key.

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
        self._due: dict[str, float] = {}
        self._held: set[str] = set()
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
            now = time.monotonic()
            self._due[key] = min(now, self._due.get(key, now))
            self._changed.notify()

    def _work(self) -> None:
        while (key := self._take()) is not None:
            delay = self._attempt(key)
            with self._changed:
                self._held.discard(key)
                if delay is not None:
                    self._due.setdefault(key, time.monotonic() + delay)
                self._changed.notify()

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
        """The key that is due first, now held; None when stopping."""
        with self._changed:
            while not self._stopping:
                free = self._due.keys() - self._held
                key = min(free, key=self._due.__getitem__, default=None)
                wait = self._due[key] - time.monotonic() if key is not None else None
                if key is not None and wait is not None and wait <= 0:
                    del self._due[key]
                    self._held.add(key)
                    return key
                self._changed.wait(wait)
        return None
