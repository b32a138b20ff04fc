"""Thread that brings the hardware up, recovers, and then keeps looking at it.

Without a driver the program stays up and tries again: what it cannot do, it says in its MigNode.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin.errors import PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.lifecycle.driverlibrary import DriverLibrary
from kubeletplugin.gpus.lifecycle.regaining import Regaining
from kubeletplugin.gpus.lifecycle.releasing import Releasing
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.readiness import Readiness

_log = logging.getLogger(__name__)
POLL_SECONDS = 10.0
AGAIN_SECONDS = 5.0
"""The longest pause while only a new process may help."""


class HardwareLoop:
    """Sets readiness once the GPUs are known; ``recover`` runs before the first time.

    ``holding`` is asked before NVML is.
    ``settle`` runs after every look at the GPUs, and says in how many seconds it is to run again if
    that is sooner than usual. ``library`` hears how NVML answers.
    ``beat`` is called every round.
    """

    def __init__(  # noqa: PLR0913 - its hooks
        self,
        hardware: Hardware,
        readiness: Readiness,
        *,
        holding: Releasing,
        recover: Callable[[], None],
        library: DriverLibrary,
        settle: Callable[[], float | None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._readiness = readiness
        self._holding = holding
        self._recover = recover
        self._settle = settle
        self._library = library
        self._clock = clock or SystemClock()
        self._regaining = Regaining(hardware, clock=self._clock)
        self._recovered = False
        self._backoff = Backoff(first=1.0)
        self._due = 0.0
        self._hurried = False
        self.thread = Loop("hardware", self._turn, beat=beat, clock=clock)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread after the look that is under way."""
        self.thread.stop()
        self.thread.join()

    def hurry(self) -> None:
        """Look at once: something else is wanted of the GPUs."""
        self._hurried = True
        self.thread.notify()

    def notify(self) -> None:
        """Look soon, if other GPUs than before are to be held open."""
        if self._holding.pending:
            self.thread.notify()

    def _turn(self) -> float:
        """A look if one is due, or GPUs are to be released; returns seconds until the next."""
        left = self._due - self._clock.monotonic()
        if left > 0 and not self._holding.pending and not self._hurried:
            return left
        self._hurried = False
        delay = self._look()
        self._due = self._clock.monotonic() + delay
        return delay

    def _look(self) -> float:
        try:
            soon = self._step()
            if self._hardware.session.is_open:
                self._library.note_answer()
        except (NvmlError, PluginError) as error:
            self._library.note_failure(error)
            delay = self._unavailable(self._library.explain(error))
            return min(delay, AGAIN_SECONDS) if self._library.doubtful else delay
        except Exception as error:  # noqa: BLE001 - claims are turned away until it is understood
            _log.exception("hardware")
            return self._unavailable(repr(error))
        self._backoff.reset()
        return POLL_SECONDS if soon is None else min(soon, POLL_SECONDS)

    def _step(self) -> float | None:
        if not self._holding.settle():
            self._rest()
            return None
        if self._readiness.is_ready:
            self._hardware.poll()
            self._regaining.look()
            return self._settle()
        self._hardware.open()
        self._hardware.discover()
        soon = self._settle()
        if not self._recovered:
            self._recover()
            self._recovered = True
        self._readiness.set_ready()
        return soon

    def _rest(self) -> None:
        """Serve without NVML, as far as that goes."""
        if self._recovered:
            if not self._readiness.is_ready:
                self._readiness.set_ready()
        elif (reason := self._holding.reason()) != self._readiness.reason:
            self._readiness.set_unready(reason)

    def _unavailable(self, reason: str) -> float:
        if reason != self._readiness.reason:
            _log.error("GPUs cannot be used: %s", reason)
        self._readiness.set_unready(reason)
        self._hardware.leave()
        self._hardware.session.close()
        return self._backoff.next_delay()
