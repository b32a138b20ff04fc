"""GPUs on which a slice could not be made lately, as kube-scheduler is to see them.

Their slices are not to be allocated for a while; from then on, while the failure is remembered, a
pod is bound to one of them only once it is made. kube-scheduler would pick the same device again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dra.gpu.inventory import Gpu
from dra.kube.timing import Clock, LeftOut, SystemClock
from dra.resourceslices.partitions import Doubts
from kubeletplugin.options import BindingConditions


class FailedGpus:
    """Failures by GPU UUID. Thread-safe; ``on_change`` is called without a lock."""

    def __init__(
        self,
        binding: BindingConditions,
        *,
        on_change: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._binding = binding
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failures: LeftOut[str] = LeftOut(self._clock.monotonic)

    def failed(self, gpus: Iterable[str]) -> None:
        """A slice could not be made on one of these GPUs."""
        with self._lock:
            for gpu in gpus:
                self._failures.fail(gpu)
        self._on_change()

    def doubts(self, gpus: Iterable[Gpu]) -> Doubts:
        """GPUs whose slices are not to be allocated, or are to be made before a pod is bound."""
        with self._lock:
            self._failures.expire()
            made_first = {
                BindingConditions.NEVER: frozenset[str](),
                BindingConditions.AFTER_FAILURE: self._failures.remembered(),
                BindingConditions.ALWAYS: frozenset(gpu.uuid for gpu in gpus),
            }
            return Doubts(self._failures.out(), made_first[self._binding])

    def due(self) -> float | None:
        """Seconds until the doubts change by themselves; None if they will not."""
        with self._lock:
            due = self._failures.due
        return None if due is None else max(0.0, due - self._clock.monotonic())
