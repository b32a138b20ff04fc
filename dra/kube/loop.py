"""Threads that do one thing again and again, and that never end unnoticed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra.kube.timing import Backoff, Clock, SystemClock

_log = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class Loop:
    """One supervised thread, which calls ``turn`` until it is stopped.

    ``turn`` returns the seconds until the next turn, or None to wait for :meth:`notify` alone;
    :meth:`notify` cuts the seconds short. An exception of a turn is logged with its traceback. The
    next turn then comes after the growing pause of ``backoff``, which :meth:`notify` does not cut
    short: a failing turn must not become a hot loop. A turn that ends well starts ``backoff`` over.
    ``beat`` is called before every turn, for a probe that notices a turn that hangs;
    :meth:`problem` is the check that notices a thread that has ended. ``turn`` and ``beat`` run in
    the thread, without any lock.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        beat: Callable[[], None] = lambda: None,
        backoff: Backoff | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._turn = turn
        self._beat = beat
        self._backoff = backoff or Backoff()
        self._clock = clock or SystemClock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def is_stopping(self) -> bool:
        """True once :meth:`stop` was called; a long turn looks here."""
        return self._stopping.is_set()

    @property
    def is_started(self) -> bool:
        """True once :meth:`start` was called."""
        return self._thread.ident is not None

    @property
    def has_ended(self) -> bool:
        """True if the thread has ended without a call of :meth:`stop`, which must never happen."""
        return self.is_started and not self._thread.is_alive() and not self._stopping.is_set()

    def problem(self) -> str:
        """A check for liveness: empty while the thread runs, or after :meth:`stop`."""
        if self._stopping.is_set() or self._thread.is_alive():
            return ""
        return f"{self._name} has ended" if self.has_ended else f"{self._name} was not started"

    def start(self) -> None:
        """Begin with the first turn. A loop runs once."""
        self._thread.start()

    def notify(self) -> None:
        """Ask for a turn soon; several calls during a turn ask for one more. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End after the turn that is under way. Does not wait. Idempotent; from any thread."""
        self._stopping.set()
        self._wake.set()

    def join(self, seconds: float = _JOIN_SECONDS) -> None:
        """Wait for the end, at most these seconds; a turn that hangs is left behind.

        Does nothing in the thread itself, or if it was never started.
        """
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def pause(self, seconds: float) -> bool:
        """Sleep within a turn, which :meth:`stop` alone cuts short; returns :meth:`is_stopping`."""
        return self._clock.wait(self._stopping, seconds)

    def gather(self, seconds: float) -> bool:
        """Sleep within a turn as :meth:`pause` does; forgets calls of :meth:`notify` until then."""
        stopping = self.pause(seconds)
        self._wake.clear()
        return stopping

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self._beat()
                seconds = self._turn()
            except Exception:  # noqa: BLE001 - a thread that dies silently is worse
                delay = self._backoff.next_delay()
                _log.exception("%s: unexpected failure; again in %.1f s", self._name, delay)
                self.pause(delay)
                continue
            self._backoff.reset()
            self._rest(seconds)

    def _rest(self, seconds: float | None) -> None:
        # stop() sets both events, and gather() may have cleared the other since.
        if self._stopping.is_set():
            return
        if seconds is None:
            self._wake.wait()
        elif seconds > 0:
            self._clock.wait(self._wake, seconds)
