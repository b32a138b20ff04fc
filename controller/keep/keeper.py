"""Keepers: what keeps other objects than claims and pods, each in its own time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from controller import times
from controller.cluster.records import Effects
from controller.write.requests import NotLeadingError

_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Keeper of some objects; it begins one write at a time, and makes no request itself."""

    @property
    def due(self) -> float | None:
        """The monotonic time of the next piece of work; None where there is none."""

    def note(self, effects: Effects) -> None:
        """Notes that the objects it keeps may have to change."""

    def work_if_due(self) -> bool:
        """Look, or begin a write; False when nothing is due."""


class Keepers:
    """Keepers that take turns; what one raises ends nothing but its turn, and it rests."""

    def __init__(self, keepers: list[Keeper], now: Callable[[], float]) -> None:
        self.all = keepers
        self._now = now
        self._rests: dict[int, float] = {}

    @property
    def due(self) -> float | None:
        """The monotonic time of the next piece of work; None where there is none."""
        found = ((each.due, self._rests.get(id(each), 0.0)) for each in self.all)
        return min((max(due, rests) for due, rests in found if due is not None), default=None)

    def work_if_due(self) -> bool:
        """Have one work; False when nothing is due.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        for keeper in self.all:
            if self._now() < self._rests.get(id(keeper), 0.0):
                continue
            try:
                if keeper.work_if_due():
                    return True
            except NotLeadingError:
                raise
            except Exception:  # noqa: BLE001 - it may be anything
                # One object that we cannot handle must not keep pods from being served.
                _log.exception("objects not kept for a while", extra={"pause": times.KEEPER_FAILED})
                self._rests[id(keeper)] = self._now() + times.KEEPER_FAILED
                return True
        return False
