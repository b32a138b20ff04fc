"""Waiting for a condition by asking again, and the error of what does not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar


class ClusterError(Exception):
    """A part of the cluster ended, or did not get there in time; the message has its last words."""


T = TypeVar("T")


def wait_for(
    what: str,
    condition: Callable[[], T | None],
    *,
    timeout: float = 30.0,
    interval: float = 0.1,
    context: Callable[[], str] | None = None,
) -> T:
    """Asks `condition` until its answer is truthy, and returns that answer.

    `interval` is the longest pause between two questions; the first ones follow sooner.

    Raises:
        ClusterError: after `timeout` seconds, naming `what`, the last answer and `context()`.
    """
    deadline = time.monotonic() + timeout
    pause = interval / 5
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            more = f"\n{context()}" if context else ""
            raise ClusterError(f"no {what} after {timeout:g} s; last answer: {answer!r}{more}")
        time.sleep(pause)
        pause = min(2 * pause, interval)
