"""The thread that opens NVML, and then looks at the GPUs every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra.gpu.inventory import GpuReason
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.errors import PluginError
from kubeletplugin.gpus.driverlibrary import DriverLibrary
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.releasing import Releasing
from kubeletplugin.nvml.errors import NvmlError

_log = logging.getLogger(__name__)


class HardwareLoop:
    """Opens NVML, has claims recovered once, and then looks at the GPUs again and again.

    Sets readiness once the GPUs are known. Without a driver the program goes on, tries again, and
    says the reason in its MigNode.

    ``releasing``: decides before each look if NVML may be used.
    ``library``: gets each success or failure of NVML.
    ``recover``: called once, before readiness is first set.
    ``settle``: called after every look; returns seconds until it is to run again, None if the usual
    pause will do.
    """

    def __init__(  # noqa: PLR0913 - its hooks
        self,
        common: Common,
        hardware: Hardware,
        *,
        releasing: Releasing,
        library: DriverLibrary,
        recover: Callable[[], None],
        settle: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._hardware = hardware
        self._readiness = common.readiness
        self._releasing = releasing
        self._recover = recover
        self._settle = settle
        self._library = library
        self._clock = common.clock
        self._recovered = False
        self._backoff = Backoff(first=1.0)
        self._due = 0.0
        self._hurried = False
        self._left_out = False
        self._regaining = Regaining(hardware, clock=self._clock)
        beat = common.telemetry.liveness.hardware.beat
        self.thread = Loop("hardware", self._turn, beat=beat, clock=common.clock)

    def hurry(self) -> None:
        """Look at once: another state is wanted of the GPUs, or a GPU reports a change."""
        self._hurried = True
        self.thread.notify()

    def notify(self) -> None:
        """Look soon, if a GPU is to be released or to be opened again."""
        if self._releasing.pending:
            self.thread.notify()

    def _turn(self) -> float:
        """Look if a look is due or GPUs are to be released; returns seconds until the next look."""
        left = self._due - self._clock.monotonic()
        if left > 0 and not self._releasing.pending and not self._hurried:
            return left
        hurried, self._hurried = self._hurried, False
        delay = self._look()
        if hurried and self._left_out:
            # The next regular look, at the GPU that was left out, would be ``POLL_SECONDS`` away.
            self._hurried, delay = True, min(delay, times.BUSY_GPU_LOOK_SECONDS)
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
            return min(delay, times.MISMATCH_LOOK_SECONDS) if self._library.doubtful else delay
        except Exception as error:  # noqa: BLE001 - claims are turned away until it is understood
            _log.exception("hardware")
            return self._unavailable(repr(error))
        self._backoff.reset()
        return times.POLL_SECONDS if soon is None else min(soon, times.POLL_SECONDS)

    def _step(self) -> float | None:
        if not self._releasing.settle():
            # Serve without NVML, as far as that goes.
            if self._recovered:
                if not self._readiness.is_ready:
                    self._readiness.set_ready()
            elif (reason := self._releasing.reason()) != self._readiness.reason:
                self._readiness.set_unready(reason)
            return None
        if self._readiness.is_ready:
            self._left_out = not self._hardware.poll()
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

    def _unavailable(self, reason: str) -> float:
        if reason != self._readiness.reason:
            _log.error("GPUs cannot be used: %s", reason)
        self._readiness.set_unready(reason)
        self._hardware.leave()
        self._hardware.session.close()
        return self._backoff.next_delay()


class Regaining:
    """Attempts to regain lost GPUs: a lost GPU may answer only after NVML is opened anew.

    No source says whether a GPU that was reset, or found again on the bus, answers in the session
    in which it was lost. Opening NVML anew interrupts the waits for events of all GPUs, so that the
    pauses between attempts grow while a GPU stays lost. To be used by the thread that looks at the
    hardware.
    """

    def __init__(self, hardware: Hardware, *, clock: Clock) -> None:
        self._hardware = hardware
        self._clock = clock
        self._lost: frozenset[str] = frozenset()
        first, longest = times.REGAIN_FIRST_SECONDS, times.REGAIN_LONGEST_SECONDS
        self._pause = Backoff(first=first, limit=longest, jitter=0.0)

    def look(self) -> None:
        """Open NVML anew and discover GPUs, if a GPU is lost and the pause is over.

        Raises:
            NvmlError: the driver cannot be asked after that.
            HostError: the file with the GPUs' names cannot be written.
        """
        lost, now = self._missing(), self._clock.monotonic()
        if lost - self._lost:
            self._pause.reset()
            self._pause.fail(now)
        self._lost = lost
        if not lost or self._pause.left(now):
            return
        self._pause.fail(now)
        names = ", ".join(sorted(lost))
        if not self._hardware.session.reopen(times.REOPEN_SECONDS):
            _log.info("NVML is not opened anew for %s: calls are under way", names)
            return
        _log.warning(
            "NVML was opened anew, as %s may answer then; the next time in %d s",
            names,
            self._pause.left(now),
        )
        self._hardware.discover()

    def _missing(self) -> frozenset[str]:
        """Names of the lost GPUs, and the problems of GPUs that do not even tell their UUID."""
        held = ((u.name, u.seen) for u in self._hardware.units() if not u.released)
        lost = {name for name, seen in held if seen and seen.reason == GpuReason.GPU_LOST}
        return frozenset(lost.union(self._hardware.problems))
