"""Release of GPUs: this program closes a GPU, so that the GPU can be reset.

Nobody can reset a GPU, or before Hopper change its MIG mode, while any process has its device file
open; nobody can unload the driver while any GPU is open. A GPU that is drained, or whose node is to
pause, is released as soon as no device of ours is prepared on it: this program then keeps no
handle, no event set and no open file of it until the drain or pause ends. Kubelet is served
meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import Drain, GpuReason, Inventory
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.node import Pause
from kubeletplugin.journal.entries import ARRIVING, HELD, Entry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Request to release GPUs, as it is at one moment.

    ``node``: the Node's name. ``pause``: of the whole node; counts before ``drain``. Without pause
    and drain no release is asked for.
    """

    node: str
    pause: Pause | None = None
    drain: Drain | None = None

    def why(self, name: str) -> str:
        """Text that says who wants the GPU ``name`` to be released; empty if nobody does."""
        covered = self.drain is not None and self.drain.covers(name)
        return self._words(covered=covered)

    def why_node(self) -> str:
        """Text that says who wants all GPUs to be released; empty if nobody does."""
        return self._words(covered=self.drain is not None and not self.drain.gpus)

    def text(self, gpu: GpuUnit, *, others_held: bool) -> str:
        """Text about a released GPU: the actions that are possible now, and the end of the release.

        ``others_held``: this program still has other GPUs open.
        """
        why, end = self.why(gpu.name), self._end(gpu.name)
        if not others_held:
            return f"{_released(why)}; {end}"
        return (
            f"released ({why}): this plugin uses nothing of it, it may be reset (nvidia-smi -r -i "
            f"{gpu.uuid}); if that answers 'In use by another client', NVML may hold it for the "
            f"other GPUs: release all (kubectl mig drain {self.node}), or see who holds it (fuser "
            f"-v /dev/nvidia*); {end}"
        )

    def text_of_node(self) -> str:
        """Text about a node on which every GPU is released."""
        return f"{_released(self.why_node() or 'drained')}; {self._end()}"

    def _words(self, *, covered: bool) -> str:
        if self.pause is not None:
            return f"label {self.pause.label}"
        if self.drain is None or not covered:
            return ""
        return f"drained: {self.drain.reason}" if self.drain.reason else "drained"

    def _end(self, name: str = "") -> str:
        if self.pause is not None:
            label = self.pause.label.partition("=")[0]
            return f"back in service when {label} is true again or gone"
        return f"kubectl mig resume {self.node}{f' {name}' if name else ''} ends it"


def _released(why: str) -> str:
    return (
        f"released ({why}): this plugin has nothing of it open, it may be reset, its MIG mode "
        "changed, the driver unloaded"
    )


class Releasing:
    """Releases GPUs and opens them again; all of it in the thread that looks at the hardware.

    ``drain`` and ``pause``: return the drain and the pause that are asked for now.
    ``look``: called once, before the first decision; reads the drain and the pause from the API
    server, and returns the node's inventory as its MigNode has it, kept as ``before``.
    ``on_taken_up``: called with the UUID of each GPU that is opened again and may have been reset.
    """

    def __init__(  # noqa: PLR0913 - what asks for it, and whom it tells
        self,
        common: Common,
        hardware: Hardware,
        *,
        drain: Callable[[], Drain | None],
        pause: Callable[[], Pause | None],
        look: Callable[[], Inventory | None],
        on_taken_up: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._hardware = hardware
        self._journal = common.journal
        self._node_name = common.options.node_name
        self._reports = common.reports
        self._drain = drain
        self._pause = pause
        self._look = look
        self._looked = False
        self.before: Inventory | None = None
        self._on_taken_up = on_taken_up
        self._said: set[str] = set()
        self._resting = threading.Event()
        self._unseen = False

    @property
    def rests(self) -> bool:
        """True if NVML is closed because every GPU is released."""
        return self._resting.is_set()

    @property
    def pending(self) -> bool:
        """True if there is a GPU to release, or to open again."""
        units, request = self._hardware.units(), self._request()
        if not units:
            return self.rests and not request.why_node()
        if request.pause is None and request.drain is None:
            return any(u.released for u in units)
        return any(
            not request.why(u.name) if u.released else request.why(u.name) and not self._users(u)
            for u in units
        )

    def settle(self) -> bool:
        """Release the GPUs that are to be released, and open again those that are not any more.

        Returns False if NVML is to be left alone, as every GPU is released.

        Raises:
            NvmlError: NVML could not be opened again.
            HostError: the file with the GPUs' names cannot be written.
        """
        if not self._looked:
            self.before = self._look()
            self._looked = True
        units = self._hardware.units()
        if not units:
            return self._at_start()
        request = self._request()
        wanted = {u.uuid for u in units if request.why(u.name)}
        for unit in units:
            users = self._users(unit) if unit.uuid in wanted and not unit.released else []
            if users:
                holders = ", ".join(sorted({str(e.claim) for e in users}))
                self._say(unit.name, f"held open as long as there is something of {holders} on it")
        back = [u for u in units if u.released and u.uuid not in wanted]
        if back:
            self._reopen(back)
        new = [u for u in units if u.uuid in wanted and not u.released and not self._users(u)]
        if new and not self._unknown:
            self._release(new, request)
        if all(u.released for u in self._hardware.units()):
            self._resting.set()
        return not self.rests

    def leaves(self, gpu: str) -> bool:
        """True if the release of the GPU with this name is asked for."""
        return bool(self._request().why(gpu))

    def unseen(self) -> str:
        """Reason why the GPUs are known only from the MigNode of an earlier process.

        Empty if GPUs were looked at, or if the first look is about to come.
        """
        if not self._unseen or self._hardware.gpus():
            return ""
        return GpuReason.RELEASED if self.rests else GpuReason.NVML_ERROR

    def reason(self) -> str:
        """Text about this node while NVML is closed because every GPU is released; else empty."""
        return self._request().text_of_node() if self.rests else ""

    def _at_start(self) -> bool:
        """Decide before the first look; False, NVML left closed, if all are to be released."""
        why = self._request().why_node()
        if why and not self._unknown and not any(_uses(e) for e in self._journal.entries()):
            if not self.rests:
                _log.info("NVML is not opened: %s", why)
            self._resting.set()
            self._unseen = True
        else:
            self._resting.clear()
        return not self.rests

    def _request(self) -> ReleaseRequest:
        return ReleaseRequest(self._node_name, self._pause(), self._drain())

    @property
    def _unknown(self) -> bool:
        """True if there may be devices of ours that are not in the journal."""
        return self._journal.rebuild

    def _users(self, unit: GpuUnit) -> list[Entry]:
        """Entries that keep a GPU from being released.

        An entry whose slice is only to be removed is one of them, unless the slice cannot be
        removed before a reset, or the entry is ``suspect``.
        """
        seen, conflict = unit.seen, unit.conflict
        lost = seen is not None and seen.reason == GpuReason.GPU_LOST
        lost = lost or unit.problem[0] == GpuReason.RECOVERY_REQUIRED
        frozen = conflict is not None and conflict.frozen
        found = self._journal.of_gpu(unit.uuid)
        resets = lost or frozen or bool(unit.unhealthy)
        return [e for e in found if _uses(e) or not (resets or e.suspect)]

    def _release(self, units: list[GpuUnit], request: ReleaseRequest) -> None:
        with ExitStack() as locks:
            free: list[GpuUnit] = []
            for unit in units:
                if not unit.lock.enter(times.RELEASE_LOCK_SECONDS):
                    continue
                locks.callback(unit.lock.leave)
                # A Prepare may have come before the lock was free.
                if not self._users(unit):
                    free.append(unit)
            if not free:
                return
            held = [u for u in self._hardware.units() if not u.released and u not in free]
            for unit in free:
                unit.released = request.text(unit, others_held=bool(held))
            if not self._close_released():
                for unit in free:
                    unit.released = ""
                self._say("NVML", "not released yet: a call of NVML has not come back")
                return
            for unit in free:
                self._hardware.show_released(unit)
        for unit in free:
            _log.info("%s: %s", unit.name, unit.released)
            self._reports.report_node(NodeReason.RELEASED, f"{unit}: {unit.released}")

    def _close_released(self) -> bool:
        """Close the released GPUs: NVML is opened anew without them, or closed if these are all.

        Returns False, and nothing has changed, if running calls have not come back in time.

        Raises:
            DriverUnavailableError: NVML could not be opened again for the other GPUs.
        """
        session, units = self._hardware.session, self._hardware.units()
        before = session.released
        session.released = frozenset(u.uuid for u in units if u.released)
        if len(session.released) == len(units):
            if session.close(times.RELEASE_CLOSE_SECONDS):
                return True
            session.released = before
            session.open()
            return False
        if session.is_open and not session.reopen(times.RELEASE_CLOSE_SECONDS):
            session.released = before
            return False
        return True

    def _reopen(self, units: list[GpuUnit]) -> None:
        """Open NVML anew for all GPUs that are not released, and look for GPUs."""
        self._resting.clear()
        for unit in units:
            unit.away = True  # it may have been reset
            unit.released = ""
        session = self._hardware.session
        try:
            session.released = frozenset(u.uuid for u in self._hardware.units() if u.released)
            if session.is_open:
                # In the old session a GPU that was reset might not answer.
                session.reopen(times.RELEASE_CLOSE_SECONDS)
            else:
                self._hardware.open()
            self._hardware.discover()
        finally:
            self._said.clear()
        for unit in units:
            self._on_taken_up(unit.uuid)
            text = f"{unit.name} ({unit.uuid}) is back in service"
            self._reports.report_node(NodeReason.BACK_IN_SERVICE, text)

    def _say(self, what: str, text: str) -> None:
        if f"{what} {text}" not in self._said:
            self._said.add(f"{what} {text}")
            _log.info("%s: %s", what, text)


def _uses(entry: Entry) -> bool:
    """True if a pod uses the device, or the device is being prepared."""
    return entry.state in HELD or entry.state in ARRIVING
