"""Profiles of one GPU as they are offered: without those that could not be delivered.

Nothing is lost for good: what was struck off is offered again after ten minutes, then ever more
seldom, and at once after a reset of the GPU.
"""

from __future__ import annotations

from dataclasses import replace

from dra.gpu.geometry import Geometry
from dra.kube.retry_schedule import RetrySchedule
from dra.kube.timing import Clock


class Offers:
    """Profiles that could not be delivered, by id. For one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._struck: dict[int, tuple[RetrySchedule, str]] = {}
        self._multiprocessors: dict[int, int] = {}

    def of(self, geometry: Geometry | None) -> Geometry | None:
        """The profiles offered now, of those that the driver reports."""
        if geometry is None or not (self._struck or self._multiprocessors):
            return geometry
        return Geometry(
            tuple(
                replace(p, multiprocessors=self._multiprocessors.get(p.id, p.multiprocessors))
                for p in geometry.profiles
                if not self.struck(p.id)
            )
        )

    def learn(self, profile_id: int, why: str, *, multiprocessors: int = 0) -> None:
        """Take note that a slice of the profile could not be had as advertised, and ``why``.

        It is offered with ``multiprocessors`` from now on; with 0 it is not offered for a while.
        """
        if multiprocessors:
            self._multiprocessors[profile_id] = multiprocessors
            return
        again, _ = self._struck.get(profile_id, (RetrySchedule(self._clock), ""))
        again.give_up()
        self._struck[profile_id] = (again, why)

    def struck(self, profile_id: int) -> str:
        """Text with reason and time for which a profile is not offered; empty if it is offered."""
        again, why = self._struck.get(profile_id, (None, ""))
        if again is None or not (seconds := again.due()):
            return ""
        return f"{why}; it is tried again in {max(1, round(seconds / 60))} min"

    def reset(self) -> None:
        """The GPU was away: nothing is known of it any more."""
        self._struck.clear()
        self._multiprocessors.clear()
