"""Thread that brings the API server up to date: after changes, and again after failures."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod

from dra.kube.errors import KubeError
from dra.kube.mirror.reflector import Reflector
from dra.kube.timing import Backoff, Clock, SystemClock

_log = logging.getLogger(__name__)


class Republisher(ABC):
    """Calls ``_publish`` after every wish; many wishes while it works are one wish.

    What ``_publish`` raises is logged, and it is tried again after a growing pause. ``reflector``
    tells what others do to the objects; it is not started where they are nobody's, with
    ``follow=False``.
    """

    def __init__(
        self, what: str, reflector: Reflector, *, follow: bool = True, clock: Clock | None = None
    ) -> None:
        self._what = what
        self._reflector = reflector
        self._follow = follow
        self._clock = clock or SystemClock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._backoff = Backoff(first=0.2, rng=random.Random())  # noqa: S311 - jitter
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)

    def start(self) -> None:
        """Publish, and go on publishing."""
        if self._follow:
            self._reflector.start()
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing; what is published stays as it is."""
        self._reflector.stop()
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def notify(self) -> None:
        """Ask for a publication, since the state may have changed."""
        self._wake.set()

    @abstractmethod
    def _publish(self) -> float | None:
        """Write what is not true yet; returns seconds after which to look again anyhow."""

    def _run(self) -> None:
        again: float | None = None
        while not self._stopping.is_set():
            self._wake.wait(again)
            self._wake.clear()
            if self._stopping.is_set():
                return
            again = None
            try:
                again = self._publish()
                self._backoff.reset()
            except KubeError as error:
                self._retry(error)
            except Exception as error:  # noqa: BLE001 - a publisher that dies silently is worse
                _log.exception("%s", self._what)
                self._retry(error)

    def _retry(self, error: Exception) -> None:
        after = error.retry_after if isinstance(error, KubeError) else None
        delay = self._backoff.next_delay(at_least=after)
        _log.warning("%s: %s; again in %.1f s", self._what, error, delay)
        self._wake.set()
        self._clock.wait(self._stopping, delay)
