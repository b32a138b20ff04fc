"""The node's GPUs as this program knows them: name, lock, description, last observation.

What is published comes from the last look at each GPU, so that a GPU that hangs holds up no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from dra.gpu.inventory import Gpu
from dra.gpu.reasons import GpuReason
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.errors import DeviceError
from kubeletplugin.gpus.gpu_description import describe
from kubeletplugin.gpus.gpu_names import GpuNames
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.locks import FifoLock
from kubeletplugin.gpus.neighbours.other_managers import Conflict
from kubeletplugin.gpus.ownership.entrywatch import EntryWatch
from kubeletplugin.gpus.ownership.identity import Identity
from kubeletplugin.host.roots import Roots
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.discovery import Card, discover, mig_mode
from kubeletplugin.nvml.errors import DriverUnavailableError, GpuLostError, NvmlError
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from kubeletplugin.nvml.session.session import Session

_log = logging.getLogger(__name__)


class Hardware:
    """All GPUs. Thread-safe; ``on_change`` is called when what is to be published has changed."""

    def __init__(  # noqa: PLR0913 - what it looks through, and who listens
        self,
        session: Session,
        journal: Journal,
        names: GpuNames,
        *,
        roots: Roots,
        on_change: Callable[[], None],
        on_lock_wait: Callable[[float], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.session = session
        self.boot_id = roots.boot_id()
        self.driver_version = ""
        self.cuda_version = ""
        self.problems: tuple[str, ...] = ()
        self._journal = journal
        self._names = names
        self._roots = roots
        self._on_change = on_change
        self._on_lock_wait = on_lock_wait
        self._mutex = threading.Lock()
        self._units: dict[str, GpuUnit] = {}
        self._withheld: dict[str, Conflict] = {}
        self._watch = EntryWatch(roots, minor_of=self._minor, generation=lambda: session.generation)
        self.identity = Identity(session, self._watch, boot_id=self.boot_id)

    def units(self) -> tuple[GpuUnit, ...]:
        """All GPUs by number."""
        with self._mutex:
            return tuple(sorted(self._units.values(), key=lambda u: u.known.number))

    def unit(self, uuid: str) -> GpuUnit | None:
        """The GPU with this UUID, if the node has it now."""
        with self._mutex:
            return self._units.get(uuid)

    def _minor(self, uuid: str) -> int | None:
        unit = self.unit(uuid)
        return None if unit is None else unit.known.card.minor

    def named(self, name: str) -> GpuUnit:
        """The GPU called ``gpu-<n>``.

        Raises:
            DeviceError: the node has none of that name; tells those it has.
        """
        units = self.units()
        for unit in units:
            if unit.name == name:
                return unit
        present = ", ".join(u.name for u in units) or "none"
        raise DeviceError(f"this node has no GPU called {name}; it has: {present}")

    def gpus(self) -> tuple[Gpu, ...]:
        """Last observation of every GPU."""
        return tuple(seen for u in self.units() if (seen := u.known.seen) is not None)

    def discover(self) -> None:
        """Look for GPUs, name them, and look at each; none that is let go of is touched.

        Raises:
            NvmlError: the driver cannot be asked.
            HostError: names cannot be kept.
        """
        found = discover(self.session, self._addresses())
        numbers = self._names.assign((c.uuid, c.minor) for c in found.cards)
        with self._mutex:
            known = self._units
            # A GPU that does not answer may be a known one; one with claims is kept.
            unread = {
                uuid: unit
                for uuid, unit in known.items()
                if found.problems or unit.known.let_go or self._journal.of_gpu(uuid)
            }
            self._units = unread | {
                c.uuid: known.get(c.uuid) or self._new_unit(numbers[c.uuid], c) for c in found.cards
            }
            for card in found.cards:
                unit = self._units[card.uuid]
                unit.set_card(_still_known(unit.known.card, card))
            for unit in self._units.values():
                unit.withhold(self._conflict())
        self.driver_version, self.cuda_version = found.driver_version, found.cuda_version
        for problem in set(found.problems).difference(self.problems):
            _log.error("GPU left out: %s", problem)
        self.problems = found.problems
        self._look_at(self.units())
        self._on_change()

    def leave(self) -> None:
        """The driver is gone, or cannot be asked: what comes back may be empty."""
        for unit in self.units():
            unit.leave()

    def withhold(self, conflict: Conflict | None, *, source: str = "") -> None:
        """Offer no GPU of this node for a reason, such as another program that manages them.

        None ends that; each ``source`` has a reason of its own.
        """
        with self._mutex:
            self._withheld.pop(source, None)
            if conflict is not None:
                self._withheld[source] = conflict
            units = tuple(self._units.values())
            foremost = self._conflict()
        for unit in units:
            unit.withhold(foremost)
            self.look(unit.uuid)

    def release(self, seconds: float) -> bool:
        """Have nothing open of GPUs whose ``let_go`` is set; of none of the node, NVML is closed.

        False, and all is as it was, if calls that run have not come back within ``seconds``.

        Raises:
            DriverUnavailableError: it could not be opened again for the others.
        """
        session, units = self.session, self.units()
        before, session.let_go = session.let_go, frozenset(u.uuid for u in units if u.known.let_go)
        if len(session.let_go) == len(units):
            done = session.close(seconds)
            if not done:
                session.let_go = before
                session.open()
            return done
        if session.is_open and not session.reopen(seconds):
            session.let_go = before
            return False
        return True

    def take_up(self, seconds: float) -> None:
        """Open NVML anew for all GPUs whose ``let_go`` is not set, and look for GPUs.

        Raises:
            NvmlError: the driver cannot be asked.
            HostError: names cannot be kept.
        """
        self.session.let_go = frozenset(u.uuid for u in self.units() if u.known.let_go)
        if self.session.is_open:
            self.session.reopen(seconds)  # a GPU that was reset may not answer otherwise
        else:
            self.session.open()
        self.discover()

    def show_let_go(self, unit: GpuUnit) -> None:
        """Publish that a GPU is let go of."""
        self._show(unit, (), {}, failure=(GpuReason.LET_GO, unit.known.let_go))

    def listed_by_kernel(self) -> frozenset[str]:
        """PCI addresses of the GPUs that NVIDIA's kernel module has; none where it cannot say."""
        try:
            folder = self._roots.on_host("/proc/driver/nvidia/gpus")
            return frozenset(path.name for path in folder.iterdir())
        except OSError as error:
            _log.debug("the kernel module's GPUs: %s", error)
            return frozenset()

    def poll(self) -> None:
        """Look at every GPU that nobody is working on; discover anew when a mode has changed.

        So it is while a GPU would not say who it is: that may pass.

        Raises:
            DriverUnavailableError: the driver is gone.
            HostError: names cannot be kept.
        """
        if self.problems or not self._look_at(self.units()):
            self.discover()

    def observe(self, unit: GpuUnit) -> None:
        """Look at a GPU again, after a change; the caller holds its lock. Never raises."""
        if unit.known.let_go:
            return
        try:
            self._see(unit)
        except NvmlError as error:
            self._failed(unit, error)

    def look(self, uuid: str) -> None:
        """Look at a GPU unless somebody works on it. Never raises."""
        unit = self.unit(uuid)
        if unit is not None and unit.lock.try_enter():
            try:
                self.observe(unit)
            finally:
                unit.lock.leave()

    def _conflict(self) -> Conflict | None:
        """The reason that counts of those that there are: one that freezes, else the oldest."""
        found = sorted(self._withheld.values(), key=lambda c: not c.frozen)
        return found[0] if found else None

    def _addresses(self) -> list[str] | None:
        """PCI addresses of the GPUs that are not let go of; None: by index, which touches all."""
        gpus = [u.known for u in self.units()]
        gone = {g.card.pci_bus_id for g in gpus if g.let_go}
        if not gone:
            return None
        known = {g.card.pci_bus_id for g in gpus if g.card.pci_bus_id}
        return sorted((known | self.listed_by_kernel()) - gone)

    def _new_unit(self, number: int, card: Card) -> GpuUnit:
        root = pcie_root(card.pci_bus_id, self._roots)
        lock = FifoLock(self._on_lock_wait)
        return GpuUnit(number, card, pcie_root=root, lock=lock, clock=self._clock)

    def _look_at(self, units: Iterable[GpuUnit]) -> bool:
        """False if a GPU's description is out of date."""
        current = True
        for unit in units:
            if unit.known.let_go:
                continue
            if not unit.lock.try_enter():
                # Whoever works on it looks when done, which may be never.
                if hangs := self.session.hangs(unit.uuid):
                    self._show(unit, (), {}, failure=(GpuReason.NVML_HANG, hangs))
                continue
            try:
                current = self._is_current(unit) and current
                self._see(unit)
            except DriverUnavailableError:
                raise
            except NvmlError as error:
                self._failed(unit, error)
            finally:
                unit.lock.leave()
        return current

    def _is_current(self, unit: GpuUnit) -> bool:
        mode = mig_mode(self.session, self.session.device(unit.uuid), gpu=unit.uuid)
        known = unit.known
        card = known.card
        if card.reason == GpuReason.NVML_ERROR or (
            known.seen and known.seen.reason == GpuReason.GPU_LOST
        ):
            return False  # a GPU that is back may have another minor number
        return (mode or (False, False)) == (card.mig_enabled, card.mig_pending)

    def _see(self, unit: GpuUnit) -> None:
        self._watch.keep_only({e.key for e in self._journal.entries()})
        gpu, entries = unit.known, self._journal.of_gpu(unit.uuid)
        present: tuple[GpuInstance, ...] = ()
        if gpu.card.geometry is not None:
            present = list_gpu_instances(self.session, unit.uuid, gpu.card.geometry)
        if gpu.away or not gpu.card.mig_enabled:
            slices = (e for e in entries if e.state is State.PREPARED and e.placement is not None)
            unit.come_back(() if present else (e.key for e in slices))
        self._show(unit, present, self.identity.owners(present, entries))

    def _failed(self, unit: GpuUnit, error: NvmlError) -> None:
        hangs = self.session.hangs(unit.uuid)
        if isinstance(error, GpuLostError):
            unit.leave()
        reason = GpuReason.GPU_LOST if isinstance(error, GpuLostError) else GpuReason.NVML_ERROR
        self._show(
            unit, (), {}, failure=(GpuReason.NVML_HANG, hangs) if hangs else (reason, str(error))
        )

    def _show(
        self,
        unit: GpuUnit,
        present: tuple[GpuInstance, ...],
        whose: Mapping[int, Entry],
        *,
        failure: tuple[str, str] = ("", ""),
    ) -> None:
        gpu = describe(
            unit.known,
            present,
            self._journal.of_gpu(unit.uuid),
            owners=whose,
            failure=failure,
        )
        before = unit.show(gpu)
        if gpu == before:
            return
        if failure[0] not in {"", GpuReason.LET_GO} and (
            before is None or before.unavailable != gpu.unavailable
        ):
            _log.error("%s: %s", unit.name, gpu.unavailable)
        self._on_change()


def _still_known(before: Card, now: Card) -> Card:
    """What is known of a GPU that could not be described now stays known.

    So it is of one that says now that it has no MIG: it cannot have lost that.
    """
    if before.mig_capable and not now.mig_capable and not now.reason:
        problem = "it says that MIG is not supported, and did support it before"
        now = replace(now, reason=GpuReason.NVML_ERROR, problem=problem)
    if now.reason in {"", GpuReason.MIG_PENDING} or before is now or before.geometry is None:
        return now
    return replace(before, minor=now.minor, reason=now.reason, problem=now.problem)


def pcie_root(address: str, roots: Roots) -> str:
    """``pci0000:00`` from a PCI device's place in sysfs; empty where that cannot be read."""
    try:
        target = roots.on_host(f"/sys/bus/pci/devices/{address}").readlink()
    except OSError:
        return ""
    return next((part for part in target.parts if part.startswith("pci")), "")
