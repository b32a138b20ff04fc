"""Waiting in tests: for conditions, never for a time.

How long something takes says something about the machine. So a wait ends as soon as its condition
holds, and is given up only when it never will: ``PATIENCE`` is no statement about speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dra.kube.errors import ObjectNotFoundError
from sim import processes

T = TypeVar("T")
PATIENCE = 90.0
"""Seconds; a machine may be paused for many of them."""


def wait_for(
    what: str, condition: Callable[[], T | None], *, context: Callable[[], str] | None = None
) -> T:
    """The first true answer of ``condition``; an object that is not there counts as not yet.

    Raises:
        ClusterError: there was none; says ``what`` was waited for, and ``context()``.
    """

    def answer() -> T | None:
        try:
            return condition()
        except ObjectNotFoundError:
            return None

    return processes.wait_for(what, answer, timeout=PATIENCE, interval=0.05, context=context)
