"""One thread that brings the hardware up, recovers, and then keeps looking at it.

Without a driver the program stays up and tries again: what it cannot do, it says in its MigNode.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin.errors import PluginError
from kubeletplugin.gate import Gate
from kubeletplugin.hardware import Hardware
from kubeletplugin.nvml.errors import NvmlError

_log = logging.getLogger(__name__)
POLL_SECONDS = 10.0


class HardwareLoop:
    """Opens the gate once the GPUs are known; ``recover`` runs before it opens the first time.

    ``settle`` runs after every look at the GPUs. ``explain`` puts an error into words.
    ``beat`` is called every round.
    """

    def __init__(  # noqa: PLR0913 - its hooks
        self,
        hardware: Hardware,
        gate: Gate,
        *,
        recover: Callable[[], None],
        settle: Callable[[], None] = lambda: None,
        explain: Callable[[Exception], str] = str,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._gate = gate
        self._recover = recover
        self._settle = settle
        self._explain = explain
        self._beat = beat
        self._clock = clock or SystemClock()
        self._recovered = False
        self._stopping = threading.Event()
        self._backoff = Backoff(first=1.0, rng=random.Random())  # noqa: S311 - jitter
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look that is under way."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._beat()
            try:
                self._step()
                delay = POLL_SECONDS
                self._backoff.reset()
            except (NvmlError, PluginError) as error:
                delay = self._unavailable(self._explain(error))
            except Exception as error:  # noqa: BLE001 - a loop that dies silently is worse
                _log.exception("hardware")
                delay = self._unavailable(repr(error))
            self._clock.wait(self._stopping, delay)

    def _step(self) -> None:
        if self._gate.is_open:
            self._hardware.poll()
            self._settle()
        else:
            self._hardware.session.open()
            self._hardware.discover()
            self._settle()
            if not self._recovered:
                self._recover()
                self._recovered = True
            self._gate.open()

    def _unavailable(self, reason: str) -> float:
        if reason != self._gate.reason:
            _log.error("GPUs cannot be used: %s", reason)
        self._gate.close(reason)
        self._hardware.leave()
        self._hardware.session.close()
        return self._backoff.next_delay()
