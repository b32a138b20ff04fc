"""Bound on slices that are made ahead for nothing: whoever makes pods and deletes them wears GPUs.

A slice that kubelet asked for costs nothing. One that was given back, or could not be made, counts
for its namespace and for its GPU, and is forgiven after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from dra.kube.timing import Clock, SystemClock

MOST_OF_NAMESPACE = 8
MOST_OF_GPU = 16
FORGIVEN_SECONDS = 60.0
"""Time after which one slice that was made for nothing counts no more."""


class Allowance:
    """Tells whether a slice may be made ahead. Thread-safe; what counts no more is not kept."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._wasted: dict[tuple[str, str], tuple[float, float]] = {}

    def is_left(self, namespace: str, gpus: Iterable[str]) -> bool:
        """True if claims of the namespace may have slices of these GPUs (UUIDs) made ahead."""
        with self._lock:
            self._forgive()
            of_namespace = self._level(("namespace", namespace)) + 1 <= MOST_OF_NAMESPACE
            return of_namespace and all(
                self._level(("gpu", gpu)) + 1 <= MOST_OF_GPU for gpu in gpus
            )

    def waste(self, namespace: str, gpus: Iterable[str]) -> None:
        """Count slices that were made for nothing; a GPU counts as often as it is named."""
        now = self._clock.monotonic()
        with self._lock:
            self._forgive()
            for gpu in gpus:
                for key in (("namespace", namespace), ("gpu", gpu)):
                    self._wasted[key] = (self._level(key) + 1, now)

    def _level(self, key: tuple[str, str]) -> float:
        count, since = self._wasted.get(key, (0.0, 0.0))
        return max(0.0, count - (self._clock.monotonic() - since) / FORGIVEN_SECONDS)

    def _forgive(self) -> None:
        self._wasted = {k: v for k, v in self._wasted.items() if self._level(k) > 0}
