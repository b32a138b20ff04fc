"""Lost GPUs that come back: NVML is opened anew for them, as one may answer only then.

No source says whether a GPU that was reset, or found again on the bus, answers in the session in
which it was lost. Opening anew ends the waits for events of all GPUs for a moment, so that it is
tried ever more seldom while a GPU stays lost, and at once when the kernel lists one again.
"""

from __future__ import annotations

import logging

from dra.gpu.reasons import GpuReason
from dra.kube.timing import Backoff, Clock
from kubeletplugin.gpus.hardware import Hardware

_log = logging.getLogger(__name__)
FIRST_SECONDS = 30.0
_LONGEST_SECONDS = 600.0
_DRAIN_SECONDS = 3.0
"""Longest wait for running calls of other GPUs, during which new calls wait too."""


class Regaining:
    """Attempts to regain lost GPUs. Only the thread that looks at the hardware uses it."""

    def __init__(self, hardware: Hardware, *, clock: Clock) -> None:
        self._hardware = hardware
        self._clock = clock
        self._lost: frozenset[str] = frozenset()
        self._listed: frozenset[str] = frozenset()
        self._backoff = Backoff(first=FIRST_SECONDS, limit=_LONGEST_SECONDS, jitter=0.0)
        self._at = 0.0

    def look(self) -> None:
        """Open NVML anew if it is time to, and look for GPUs again.

        Raises:
            NvmlError: the driver cannot be asked after that.
            HostError: names cannot be kept.
        """
        lost, listed = self._missing(), self._hardware.listed_by_kernel()
        back, self._listed = listed - self._listed if self._lost else frozenset(), listed
        if lost - self._lost:
            self._backoff.reset()
            self._postpone()
        self._lost = lost
        if not lost or not (back or self._clock.monotonic() >= self._at):
            return
        self._postpone()
        names = ", ".join(sorted(lost))
        if not self._hardware.session.reopen(_DRAIN_SECONDS):
            _log.info("NVML is not opened anew for %s: calls are under way", names)
            return
        _log.warning(
            "NVML was opened anew, as %s may answer then; the next time in %d s",
            names,
            self._at - self._clock.monotonic(),
        )
        self._hardware.discover()

    def _postpone(self) -> None:
        self._at = self._clock.monotonic() + self._backoff.next_delay()

    def _missing(self) -> frozenset[str]:
        """GPUs that do not answer, by name, and those that would not even say who they are."""
        gpus = (u.known for u in self._hardware.units())
        seen = (g.seen for g in gpus if not g.released)
        known = {
            f"gpu-{gpu.minor}"
            for gpu in seen
            if gpu is not None and gpu.reason == GpuReason.GPU_LOST
        }
        return frozenset(known.union(self._hardware.problems))
