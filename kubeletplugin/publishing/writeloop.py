"""Loop for writers to the API server: they write after changes, and again after failures."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from dra.kube.errors import KubeError
from dra.kube.loop import Loop
from dra.kube.reflector import Reflector
from dra.kube.timing import Backoff, Clock

_log = logging.getLogger(__name__)


class WriteLoop(ABC):
    """Calls ``_publish`` in ``thread`` after each ``notify``; several during one call count as one.

    An error of ``_publish`` is logged, and it is called again after a growing pause. ``what``: name
    for logs. ``reflector``: watch of the objects, started and stopped with the loop.
    """

    def __init__(
        self,
        what: str,
        *,
        reflector: Reflector | None = None,
        backoff: Backoff | None = None,
        clock: Clock,
    ) -> None:
        self._what = what
        self._reflector = reflector
        self._clock = clock
        self._backoff = Backoff()
        self.thread = Loop(what, self._turn, backoff=backoff, clock=clock)

    def start(self) -> None:
        """Publish, and go on publishing."""
        if self._reflector is not None:
            self._reflector.start()
        self.thread.start()

    def stop(self) -> None:
        """Stop after the write that is under way; what is published stays as it is."""
        if self._reflector is not None:
            self._reflector.stop()
        self.thread.stop()
        self.thread.join()

    @abstractmethod
    def _publish(self) -> float | None:
        """Write what differs; returns seconds until the next call without notice, or None."""

    def _turn(self) -> float | None:
        try:
            again = self._publish()
        except KubeError as error:
            delay = self._backoff.next_delay(at_least=error.retry_after)
            _log.warning("%s: %s; again in %.1f s", self._what, error, delay)
            self.thread.pause(delay)
            return 0.0
        self._backoff.reset()
        return again
