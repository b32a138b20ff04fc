"""Claims that are not to be allocated: the next step for each, once nothing is written to it."""

from __future__ import annotations

from controller.lifecycle.claim_labels import ClaimLabels
from controller.lifecycle.cleanup import Ender
from controller.lifecycle.failures.failed_prepare import FailedPrepares
from controller.serving.agenda import Agenda
from controller.writing.in_flight import InFlight
from dra.common.resources import ObjectKey


class EndedClaims:
    """Looks at one claim after the other."""

    def __init__(
        self,
        agenda: Agenda,
        in_flight: InFlight,
        *,
        ender: Ender,
        failed_prepares: FailedPrepares,
        labels: ClaimLabels,
    ) -> None:
        self._agenda = agenda
        self._in_flight = in_flight
        self._ender = ender
        self._failed_prepares = failed_prepares
        self._labels = labels

    def look_at(self, key: ObjectKey) -> bool:
        """See whether a claim has ended, or is to be labelled; True when a write is under way."""
        if self._in_flight.is_about([key]):
            self._agenda.hold_up_claim(key)
        elif not self._failed_prepares.look_at(key):
            times = [self._labels.look_at(key)]
            if not self._in_flight.is_about([key]):
                times.append(self._ender.look_at(key))
            for again in filter(None, times):
                self._agenda.add_claim(key, at=again)
        return self._in_flight.is_about([key])
