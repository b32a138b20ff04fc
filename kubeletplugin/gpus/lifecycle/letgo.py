"""Letting go of GPUs: while anybody has a GPU's device file open, nobody can reset it.

The same holds for MIG mode before Hopper, and of all GPUs together for unloading the driver. A GPU
that is drained, or whose node is to pause, is let go of as soon as nothing of ours is prepared on
it: no handle, no event set, no open file, until it is wanted again. Kubelet is served meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import Drain, Inventory
from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.lifecycle.opening import close_let_go, open_held
from kubeletplugin.gpus.neighbours.pausing import Pause
from kubeletplugin.journal.entries import ARRIVING, HELD, Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
_LOCK_SECONDS = 2.0
_CLOSE_SECONDS = 5.0


class LettingGo:
    """Lets go of GPUs and takes them up again; all of it in the thread that looks at the hardware.

    ``drain`` and ``pause`` say what is asked for now, ``look`` finds that out for the first time,
    and what the MigNode said ``before``. ``on_taken_up`` hears of a GPU that may have been reset.
    """

    def __init__(  # noqa: PLR0913 - what asks for it, and whom it tells
        self,
        hardware: Hardware,
        journal: Journal,
        node_name: str,
        *,
        drain: Callable[[], Drain | None],
        pause: Callable[[], Pause | None],
        look: Callable[[], Inventory | None],
        reports: Reports,
        on_taken_up: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._node_name = node_name
        self._drain = drain
        self._pause = pause
        self._look = look
        self._looked = False
        self.before: Inventory | None = None
        self._reports = reports
        self._on_taken_up = on_taken_up
        self._said: set[str] = set()
        self._resting = threading.Event()
        self._unseen = False

    @property
    def rests(self) -> bool:
        """Whether NVML is closed because every GPU is let go of."""
        return self._resting.is_set()

    @property
    def pending(self) -> bool:
        """Whether there is something to let go of, or to take up again."""
        units = self._hardware.units()
        if not units:
            return self.rests and not self._why_node()
        return any(
            not self._why(u) if u.known.let_go else self._why(u) and not self._users(u)
            for u in units
        )

    def settle(self) -> bool:
        """Let go of what is not to be held, take up the rest; False: NVML is to be left alone.

        Raises:
            NvmlError: NVML could not be opened again.
            HostError: names of GPUs cannot be kept.
        """
        if not self._looked:
            self.before = self._look()
            self._looked = True
        units = self._hardware.units()
        if not units:
            return self._at_start()
        wanted = {u.uuid: why for u in units if (why := self._why(u))}
        self._say_waiting(units, wanted)
        back = [u for u in units if u.known.let_go and u.uuid not in wanted]
        if back:
            self._take_up(back)
        new = [u for u in units if u.uuid in wanted and not u.known.let_go and not self._users(u)]
        if new and not self._unknown:
            self._let_go(new, wanted)
        if all(u.known.let_go for u in self._hardware.units()):
            self._resting.set()
        return not self.rests

    def _at_start(self) -> bool:
        """Decide before the first look: a node that is to rest is not looked at."""
        why = self._why_node()
        if why and not self._unknown and not any(_uses(e) for e in self._journal.entries()):
            if not self.rests:
                _log.info("NVML is not opened: %s", why)
            self._resting.set()
            self._unseen = True
        else:
            self._resting.clear()
        return not self.rests

    def _why(self, unit: GpuUnit) -> str:
        """Text that says who wants a GPU to be let go of; empty if nobody does."""
        pause, drain = self._pause(), self._drain()
        if pause is not None:
            return f"label {pause.label}"
        return _drained(drain) if drain is not None and drain.covers(unit.name) else ""

    def _why_node(self) -> str:
        pause, drain = self._pause(), self._drain()
        if pause is not None:
            return f"label {pause.label}"
        return _drained(drain) if drain is not None and not drain.gpus else ""

    def unseen(self) -> str:
        """The reason of GPUs of which nothing is known but what the MigNode said before.

        Empty if they were looked at, or are about to be for the first time.
        """
        if not self._unseen or self._hardware.gpus():
            return ""
        return GpuReason.LET_GO if self.rests else GpuReason.NVML_ERROR

    def reason(self) -> str:
        """Text about a node that was not looked at because it rests; empty otherwise."""
        if not self.rests:
            return ""
        return f"{_words(self._why_node() or 'drained', whole=True)}; {self._back()}"

    @property
    def _unknown(self) -> bool:
        """Whether there may be devices of ours of which the journal does not tell."""
        return self._journal.rebuild or bool(self._journal.unread())

    def _users(self, unit: GpuUnit) -> list[Entry]:
        """What keeps a GPU from being let go of.

        What is only left to be removed does, unless that cannot be done before a reset.
        """
        gpu = unit.known
        lost = gpu.seen is not None and gpu.seen.reason == GpuReason.GPU_LOST
        frozen = gpu.withheld is not None and gpu.withheld.frozen
        found = self._journal.of_gpu(unit.uuid)
        return [e for e in found if _uses(e) or not (lost or frozen or gpu.unhealthy)]

    def _let_go(self, units: list[GpuUnit], wanted: dict[str, str]) -> None:
        with ExitStack() as locks:
            free: list[GpuUnit] = []
            for unit in units:
                if not unit.lock.enter(_LOCK_SECONDS):
                    continue
                locks.callback(unit.lock.leave)
                # A Prepare may have come before the lock was free.
                if not self._users(unit):
                    free.append(unit)
            if not free:
                return
            held = [u for u in self._hardware.units() if not u.known.let_go and u not in free]
            for unit in free:
                unit.let_go(self._text(unit, wanted[unit.uuid], alone=bool(held)))
            if not close_let_go(self._hardware, _CLOSE_SECONDS):
                for unit in free:
                    unit.hold()
                self._say("NVML", "not let go of yet: a call of NVML has not come back")
                return
            for unit in free:
                self._hardware.show_let_go(unit)
        for unit in free:
            gpu = unit.known
            _log.info("%s: %s", gpu.name, gpu.let_go)
            text = f"{gpu}: {gpu.let_go}"
            self._reports.report_node(NodeReason.LET_GO, text)

    def _take_up(self, units: list[GpuUnit]) -> None:
        self._resting.clear()
        for unit in units:
            unit.take_up()
        try:
            open_held(self._hardware, _CLOSE_SECONDS)
        finally:
            self._said.clear()
        for unit in units:
            self._on_taken_up(unit.uuid)
            self._reports.report_node(
                NodeReason.TAKEN_UP, f"{unit.name} ({unit.uuid}) is in use again"
            )

    def _text(self, unit: GpuUnit, why: str, *, alone: bool) -> str:
        if not alone:
            return f"{_words(why, whole=True)}; {self._back(unit)}"
        return (
            f"{_words(why, whole=False)} (nvidia-smi -r -i {unit.uuid}); if that answers 'In use "
            "by another client', see who holds it (fuser -v /dev/nvidia*) or let go of all GPUs "
            f"(kubectl mig drain {self._node_name}); {self._back(unit)}"
        )

    def _back(self, unit: GpuUnit | None = None) -> str:
        pause = self._pause()
        if pause is not None:
            return f"taken up again when {pause.label.partition('=')[0]} is true again or gone"
        return f"kubectl mig resume {self._node_name}{f' {unit.name}' if unit else ''} ends it"

    def _say_waiting(self, units: tuple[GpuUnit, ...], wanted: dict[str, str]) -> None:
        for unit in units:
            users = self._users(unit) if unit.uuid in wanted and not unit.known.let_go else []
            if users:
                holders = ", ".join(sorted({str(e.claim) for e in users}))
                self._say(unit.name, f"held open as long as there is something of {holders} on it")

    def _say(self, what: str, text: str) -> None:
        if f"{what} {text}" not in self._said:
            self._said.add(f"{what} {text}")
            _log.info("%s: %s", what, text)


def _uses(entry: Entry) -> bool:
    """Whether somebody uses the device, or is about to."""
    return entry.state in HELD or entry.state in ARRIVING


def _drained(drain: Drain) -> str:
    return f"drained: {drain.reason}" if drain.reason else "drained"


def _words(why: str, *, whole: bool) -> str:
    free = (
        "it may be reset, its MIG mode changed, the driver unloaded" if whole else "it may be reset"
    )
    return f"let go of ({why}): this plugin has nothing of it open, {free}"
