"""Threads that make requests to the API server, so that a slow answer delays no other work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

SENDERS = 8
"""Enough for 200 writes a second on an API server that takes 40 ms for each."""


class Outbox(Protocol):
    """Taker of writes."""

    def send(self, job: Callable[[], None]) -> None:
        """Have ``job``, which does not raise, done by some thread."""


class Senders:
    """``count`` threads; jobs start in the order in which they were sent."""

    def __init__(self, count: int = SENDERS) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="write")

    def send(self, job: Callable[[], None]) -> None:
        """Have ``job`` done by one of the threads."""
        self._pool.submit(job)

    def close(self) -> None:
        """Wait for the jobs that were begun; the others are dropped. Nothing is sent afterwards."""
        self._pool.shutdown(wait=True, cancel_futures=True)
