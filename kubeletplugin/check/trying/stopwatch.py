"""Times of NVML's calls, by function."""

from __future__ import annotations

import threading
from statistics import median

from kubeletplugin.check.report import Times


class Stopwatch:
    """Hears of every call of a session. Thread-safe.

    Calls that failed are left out: how long a refusal takes says nothing of the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, list[float]] = {}

    def __call__(self, name: str, code: str, seconds: float) -> None:
        """Take down one call."""
        if code == "SUCCESS":
            with self._lock:
                self._seconds.setdefault(name, []).append(seconds)

    def times(self) -> dict[str, Times]:
        """Recorded times, by function name."""
        with self._lock:
            taken = {name: sorted(values) for name, values in self._seconds.items()}
        return {name: _times(values) for name, values in sorted(taken.items())}


def _times(seconds: list[float]) -> Times:
    shown = [round(s * 1000, 3) for s in (seconds[0], median(seconds), seconds[-1])]
    return Times(calls=len(seconds), min=shown[0], median=shown[1], max=shown[2])
