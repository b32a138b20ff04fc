"""Problems of GPUs and slices that NVML answers for nevertheless: XIDs, and missing permission.

Kept in memory only: what was said of a GPU before the plugin's start is not known to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from dra.gpu.inventory import Gpu, Instance, InstanceState
from dra.gpu.reasons import GpuReason

QUIET_SECONDS = 300.0
"""Time after the last XID at which a GPU or slice that answers counts as healthy again."""

_THERE = frozenset({InstanceState.PREPARED, InstanceState.PREPARING})


@dataclass(frozen=True, slots=True)
class GpuProblem:
    """One reason for which a GPU (``gi_id`` None) or a slice on it is not healthy.

    ``at``: monotonic time of its last sign. ``needs_reset``: no quiet time heals it. ``blocks``: no
    slice is made on the GPU. ``beside``: UUIDs of the MIG devices present at the time (for a slice,
    its own). ``away``: the GPU has been lost since.
    """

    gpu: str
    reason: str
    message: str
    at: float
    gi_id: int | None = None
    needs_reset: bool = False
    blocks: bool = True
    beside: frozenset[str] = frozenset()
    away: bool = False


class GpuProblems:
    """All problems of the node's GPUs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int | None, str], GpuProblem] = {}

    def add(self, problem: GpuProblem) -> bool:
        """Take one more sign of a problem; False if it was known, and keeps its words."""
        key = (problem.gpu, problem.gi_id, problem.message)
        with self._lock:
            known = self._known.get(key)
            self._known[key] = problem if known is None else replace(known, at=problem.at)
            return known is None

    def drop(self, gpu: str, *, reason: str) -> bool:
        """Forget what has this reason; False if there was nothing."""
        with self._lock:
            gone = [k for k, a in self._known.items() if a.gpu == gpu and a.reason == reason]
            for key in gone:
                del self._known[key]
            return bool(gone)

    def forget(self, gpu: str) -> tuple[GpuProblem, ...]:
        """Forget what concerns a GPU as a whole or slices on it; returns it."""
        with self._lock:
            gone = [k for k, a in self._known.items() if a.gpu == gpu]
            return tuple(self._known.pop(key) for key in gone)

    def review(self, gpus: Iterable[Gpu], *, now: float) -> tuple[GpuProblem, ...]:
        """Forget what has passed, judged by what was last seen of the GPUs; returns it."""
        by_uuid = {g.uuid: g for g in gpus}
        with self._lock:
            healed: list[GpuProblem] = []
            for key, problem in list(self._known.items()):
                gpu = by_uuid.get(problem.gpu)
                if gpu is None or gpu.reason == GpuReason.GPU_LOST:
                    self._known[key] = replace(problem, away=True)
                elif has_passed(problem, gpu, now=now):
                    healed.append(self._known.pop(key))
            return tuple(healed)

    def of_gpu(self, gpu: str) -> GpuProblem | None:
        """The gravest problem of a GPU as a whole."""
        if not self._known:
            return None
        with self._lock:
            found = [a for a in self._known.values() if a.gpu == gpu and a.gi_id is None]
        return max(found, key=lambda a: (a.blocks, a.needs_reset), default=None)

    def of_slice(self, gpu: str, instance: Instance) -> GpuProblem | None:
        """The problem of one slice, beside those of its GPU."""
        with self._lock:
            return next((a for a in self._known.values() if _is_about(a, gpu, instance)), None)

    def shown(self, gpu: Gpu) -> Gpu:
        """A GPU as last seen, with its problems; NVML's own verdict on it comes first."""
        if not self._known:
            return gpu
        instances = tuple(
            structs.replace(i, unhealthy=problem.message)
            if (problem := self.of_slice(gpu.uuid, i)) is not None
            else i
            for i in gpu.instances
        )
        whole = self.of_gpu(gpu.uuid)
        if whole is None or gpu.unavailable:
            return replace(gpu, instances=instances) if instances != gpu.instances else gpu
        return replace(gpu, instances=instances, unavailable=whole.message, reason=whole.reason)


def has_passed(problem: GpuProblem, gpu: Gpu, *, now: float) -> bool:
    """True if a problem is over, as the GPU was last seen, which is not lost.

    A slice is well again when it has been removed: what is made next is another. A GPU is when it
    was lost and is back, or when the slices that were on it are gone without an Unprepare: both
    mean a reset. Where no reset is needed, it is enough that for a time no further XID came, the
    GPU answers, and the slice is there.
    """
    if gpu.unavailable:
        return False
    if problem.away:
        return True
    there = {i.uuid for i in gpu.instances if i.state in _THERE and i.uuid}
    lost = {i.uuid for i in gpu.instances if i.state is InstanceState.LOST}
    if problem.gi_id is not None and not problem.beside & there:
        return True
    if problem.beside & lost and not problem.beside & there:
        return True
    return not problem.needs_reset and now - problem.at >= QUIET_SECONDS


def _is_about(problem: GpuProblem, gpu: str, instance: Instance) -> bool:
    return problem.gpu == gpu and problem.gi_id is not None and instance.uuid in problem.beside
