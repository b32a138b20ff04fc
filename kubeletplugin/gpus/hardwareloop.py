"""One thread that brings the hardware up, recovers, and then keeps looking at it.

Without a driver the program stays up and tries again: what it cannot do, it says in its MigNode.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Protocol

from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin.errors import PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.lifecycle.regaining import Regaining
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.readiness import Readiness

_log = logging.getLogger(__name__)
POLL_SECONDS = 10.0
AGAIN_SECONDS = 5.0
"""The longest pause while only a new process may help."""


class Holding(Protocol):
    """Decision which GPUs are held open."""

    @property
    def pending(self) -> bool:
        """Whether there is something to let go of, or to take up again."""

    def settle(self) -> bool:
        """Let go of some, or take them up again; False: NVML is to be left alone."""

    def reason(self) -> str:
        """Reason why no GPU was looked at so far; empty if one was."""


class Library(Protocol):
    """NVML's library in this process."""

    @property
    def doubtful(self) -> bool:
        """Whether it may be that only a new process helps."""

    def matches(self) -> None:
        """NVML has answered."""

    def failed(self, error: Exception) -> None:
        """NVML has failed."""

    def explain(self, error: Exception) -> str:
        """The error in words."""


class HardwareLoop:
    """Opens readiness once the GPUs are known; ``recover`` runs before the first opening.

    ``holding`` is asked before NVML is.
    ``settle`` runs after every look at the GPUs. ``library`` hears how NVML answers.
    ``beat`` is called every round.
    """

    def __init__(  # noqa: PLR0913 - its hooks
        self,
        hardware: Hardware,
        readiness: Readiness,
        *,
        holding: Holding,
        recover: Callable[[], None],
        library: Library,
        settle: Callable[[], None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._readiness = readiness
        self._holding = holding
        self._recover = recover
        self._settle = settle
        self._library = library
        self._beat = beat
        self._clock = clock or SystemClock()
        self._regaining = Regaining(hardware, clock=self._clock)
        self._recovered = False
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._backoff = Backoff(first=1.0, rng=random.Random())  # noqa: S311 - jitter
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def notify(self) -> None:
        """Look soon, if other GPUs than before are to be held open."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._beat()
            try:
                self._step()
                delay = POLL_SECONDS
                self._backoff.reset()
                if self._hardware.session.is_open:
                    self._library.matches()
            except (NvmlError, PluginError) as error:
                self._library.failed(error)
                delay = self._unavailable(self._library.explain(error))
                if self._library.doubtful:
                    delay = min(delay, AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - a loop that dies silently is worse
                _log.exception("hardware")
                delay = self._unavailable(repr(error))
            self._pause(delay)

    def _step(self) -> None:
        if not self._holding.settle():
            self._rest()
        elif self._readiness.is_open:
            self._hardware.poll()
            self._regaining.look()
            self._settle()
        else:
            self._hardware.session.open()
            self._hardware.discover()
            self._settle()
            if not self._recovered:
                self._recover()
                self._recovered = True
            self._readiness.open()

    def _pause(self, seconds: float) -> None:
        """Wait for the next look."""
        end = self._clock.monotonic() + seconds
        while not self._stopping.is_set():
            left = end - self._clock.monotonic()
            if left <= 0 or not self._clock.wait(self._wake, left):
                return
            self._wake.clear()
            if self._holding.pending:
                return

    def _rest(self) -> None:
        """Serve without NVML, as far as that goes."""
        if self._recovered:
            if not self._readiness.is_open:
                self._readiness.open()
        elif (reason := self._holding.reason()) != self._readiness.reason:
            self._readiness.close(reason)

    def _unavailable(self, reason: str) -> float:
        if reason != self._readiness.reason:
            _log.error("GPUs cannot be used: %s", reason)
        self._readiness.close(reason)
        self._hardware.leave()
        self._hardware.session.close()
        return self._backoff.next_delay()
