"""Repetition of what failed for a moment: kubelet asks again only after a minute or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dra.kube.timing import Backoff, Clock
from kubeletplugin.errors import PluginError
from kubeletplugin.nvml.errors import NvmlError

T = TypeVar("T")
_FIRST_SECONDS = 0.1


def patiently(
    attempt: Callable[[], T],
    *,
    end: float,
    longest: float,
    clock: Clock,
    on_retry: Callable[[PluginError | NvmlError], None] = lambda _: None,
) -> T:
    """The result of the first attempt that does not fail in passing.

    Pauses double up to ``longest`` seconds; no attempt begins after ``end``, a time of ``clock``.
    ``on_retry`` hears of each failure before the pause. No lock may be held: others work meanwhile.

    Raises:
        PluginError, NvmlError: the failure does not pass, or there is no time left.
    """
    backoff = Backoff(first=_FIRST_SECONDS, limit=longest, jitter=0.0)
    while True:
        delay = backoff.next_delay()
        try:
            return attempt()
        except (PluginError, NvmlError) as error:
            if not error.passing or clock.monotonic() + delay > end:
                raise
            on_retry(error)
        clock.sleep(delay)
