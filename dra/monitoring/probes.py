"""Probes: a daemon that works at all is ``live``, one that can do its work now is ``ready``.

Kubelet kills a daemon that is not live, so ``live`` holds only checks for faults that a restart
would mend: a thread that has ended, a server that does not answer. An unavailable GPU or API server
is no such fault.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Check = Callable[[], str]
"""Fault in words; empty if there is none. Returns soon, and may be called from any thread."""

_log = logging.getLogger(__name__)


class Checks:
    """Named checks, asked all together. Thread-safe."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._checks: dict[str, Check] = {}
        self._told: tuple[str, ...] = ()

    def add(self, name: str, check: Check) -> None:
        """Adds a check, in the place of an earlier one of this name."""
        with self._lock:
            self._checks[name] = check

    def clear(self) -> None:
        """Drops all checks, when the things that they look at end as they should."""
        with self._lock:
            self._checks = {}

    def problems(self) -> tuple[str, ...]:
        """``name: words`` of every check that fails; a check that raises fails."""
        with self._lock:
            checks = list(self._checks.items())
        found = tuple(f"{name}: {problem}" for name, check in checks if (problem := _asked(check)))
        with self._lock:
            news, self._told = found != self._told, found
        if news and found:
            _log.warning("not %s", self._what, extra={"problems": "; ".join(found)})
        return found


@dataclass(frozen=True, slots=True)
class Probes:
    """Checks behind ``/healthz`` (``live``) and ``/readyz`` (``ready``)."""

    live: Checks = field(default_factory=lambda: Checks("live"))
    ready: Checks = field(default_factory=lambda: Checks("ready"))


class Pulse:
    """Sign of life of a loop. Thread-safe; as a Check it fails ``limit`` seconds after a beat.

    Before the first beat, and after ``rest``, nothing is expected of the loop.
    """

    def __init__(self, limit: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._last: float | None = None

    def beat(self) -> None:
        """Take note that the loop turns."""
        self._last = self._clock()

    def rest(self) -> None:
        """Expect nothing: the loop has ended as it should, or waits for as long as it takes."""
        self._last = None

    @property
    def silence(self) -> float:
        """Seconds since the last beat; 0.0 while nothing is expected."""
        last = self._last
        return 0.0 if last is None else self._clock() - last

    def __call__(self) -> str:
        """Fault in words; empty if there is none."""
        silent = self.silence
        return f"nothing has been done for {silent:.0f} s" if silent > self._limit else ""


def _asked(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - told to whoever asks
        _log.exception("a check failed")
        return f"the check itself failed: {error!r}"
