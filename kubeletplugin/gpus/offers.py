"""Profiles of one GPU as they are offered: without those that could not be delivered.

Nothing is lost for good: one refusal may be a mistake, so that what was struck off is offered
again after seconds, and more seldom only while it is refused again; at once after a reset of the
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dra.gpu.geometry import Geometry
from dra.kube.timing import Backoff, Clock

FIRST_SECONDS = 5.0
_LONGEST_SECONDS = 4 * 3600.0
_MINUTES = 120.0


@dataclass(slots=True)
class _Refusal:
    """Refusals of one profile in a row: the last one's reason, and when it is offered again."""

    why: str = ""
    until: float = 0.0
    times: int = 0
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=FIRST_SECONDS, limit=_LONGEST_SECONDS, jitter=0.0)
    )


class Offers:
    """Profiles that could not be delivered, by id. For one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._struck: dict[int, _Refusal] = {}
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
        refusal = self._struck.setdefault(profile_id, _Refusal())
        refusal.why = why
        refusal.times += 1
        refusal.until = self._clock.monotonic() + refusal.backoff.next_delay()

    def delivered(self, profile_id: int) -> None:
        """Take note that a slice of the profile was made: the next refusal is a first one again."""
        self._struck.pop(profile_id, None)

    def struck(self, profile_id: int) -> str:
        """Text with reason and time for which a profile is not offered; empty if it is offered."""
        refusal = self._struck.get(profile_id)
        seconds = refusal.until - self._clock.monotonic() if refusal else 0.0
        if refusal is None or seconds <= 0:
            return ""
        pause = (
            f"{round(seconds / 60)} min" if seconds > _MINUTES else f"{max(1, round(seconds))} s"
        )
        return f"{refusal.why}; it is tried again in {pause}"

    def refused_once(self, profile_id: int) -> bool:
        """True if a profile was refused, and not again since: that may have been a mistake."""
        refusal = self._struck.get(profile_id)
        return refusal is not None and refusal.times == 1

    def reset(self) -> None:
        """The GPU was away: nothing is known of it any more."""
        self._struck.clear()
        self._multiprocessors.clear()
