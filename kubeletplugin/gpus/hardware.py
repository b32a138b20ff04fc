"""The node's GPUs: discovery, names, conflicts, and looks at each of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from cdi.files import write_durably
from dra.gpu.inventory import Gpu, GpuReason
from dra.gpu.names import gpu_name, parse_device
from dra.kube.loop import Loop
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.errors import DeviceError, HostError
from kubeletplugin.gpus.gpu import Conflict, FifoLock, GpuUnit
from kubeletplugin.gpus.identity import Identity
from kubeletplugin.gpus.node import ShareOffers
from kubeletplugin.gpus.reader import GpuReader
from kubeletplugin.host.nodes import (
    can_make_nodes,
    driver_nodes,
    listed_gpus,
    make_nodes,
    pcie_root,
)
from kubeletplugin.host.processes import openers
from kubeletplugin.journal.entries import Entry, EntryKey
from kubeletplugin.nvml.errors import NvmlError, is_mismatch, serve_gpus
from kubeletplugin.nvml.gpus import Card, discover
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)
_MOST_OPENERS = 8
"""Most programs that a MigNode names for a GPU."""


class Hardware:
    """All GPUs of the node. Thread-safe.

    ``sharing``: called at each look; returns the present offers to several claims at once.
    ``looks``: thread that looks at GPUs soon after changes, without delaying a caller. A GPU that
    hangs delays this thread by the deadline of one call.
    """

    def __init__(
        self,
        common: Common,
        session: Session,
        *,
        sharing: Callable[[], ShareOffers] = ShareOffers,
    ) -> None:
        self._clock = common.clock
        self._roots = common.options.roots
        self._journal = common.journal
        self._on_change = common.changed
        self._on_lock_wait = common.telemetry.metrics.lock_wait
        self._sharing = sharing
        self._numbers = used_names(common.journal.entries())
        self._mutex = threading.Lock()
        self._units: dict[str, GpuUnit] = {}
        self._ordered: tuple[GpuUnit, ...] = ()
        self._conflicts: dict[str, Conflict] = {}
        self.session = session
        self.boot_id = self._roots.boot_id()
        self.driver_version = ""
        self.cuda_version = ""
        self.problems: tuple[str, ...] = ()
        self.makes_nodes = True
        self.identity = Identity(session, boot_id=self.boot_id)
        self._reader = GpuReader(session, self._journal, self.identity, on_change=self._on_change)
        self.looks = Loop("looks", self._look_turn, clock=common.clock)

    def units(self) -> tuple[GpuUnit, ...]:
        """All GPUs by number."""
        return self._ordered

    def unit(self, uuid: str) -> GpuUnit | None:
        """The GPU with this UUID, if the node has it now."""
        with self._mutex:
            return self._units.get(uuid)

    def named(self, name: str) -> GpuUnit:
        """The GPU called ``gpu-<n>``.

        Raises:
            DeviceError: the node has no GPU of that name; lists the names that it has.
        """
        units = self.units()
        for unit in units:
            if unit.name == name:
                return unit
        present = ", ".join(u.name for u in units) or "none"
        raise DeviceError(f"this node has no GPU called {name}; it has: {present}")

    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU as last seen; a GPU that was not looked at yet is left out."""
        return tuple(seen for u in self.units() if (seen := u.seen) is not None)

    def open(self) -> None:
        """Make the device nodes that NVML needs, as far as permitted, and open NVML.

        Raises:
            NvmlError: the driver cannot be asked.
            HostError: the driver cannot be asked, and a device node could not be made.
        """
        try:
            problem = make_nodes(self._roots, driver_nodes(self._roots))
        except HostError as error:
            problem = str(error)
        self.makes_nodes = can_make_nodes(self._roots)
        try:
            self.session.open()
        except NvmlError as error:
            if not problem or is_mismatch(error):
                raise
            raise HostError(f"{error}; {problem}") from error

    def discover(self, described: Mapping[str, Card] | None = None) -> bool:
        """Look for GPUs, name them, and look at each; released GPUs are not touched.

        ``described``: by UUID, descriptions that still hold, which are not asked for again.
        Returns False if a GPU was not looked at, as somebody works on it.

        Raises:
            NvmlError: the driver cannot be asked.
            HostError: the file with the GPUs' names cannot be written.
        """
        found = discover(self.session, self._addresses(), described=described or {})
        self._numbers |= assign_names(
            self._roots.state / "gpus.json",
            ((c.uuid, c.minor) for c in found.cards),
            hints=self._numbers,
        )
        numbers = self._numbers
        serve_gpus({c.uuid: gpu_name(numbers[c.uuid]) for c in found.cards})
        with self._mutex:
            known = self._units
            # A GPU that does not answer may be a known one; one with claims is kept.
            unread = {
                uuid: unit
                for uuid, unit in known.items()
                if found.problems or unit.released or self._journal.of_gpu(uuid)
            }
            self._units = unread | {
                c.uuid: known.get(c.uuid) or self._new_unit(numbers[c.uuid], c) for c in found.cards
            }
            self._ordered = tuple(sorted(self._units.values(), key=lambda u: u.number))
            for card in found.cards:
                unit = self._units[card.uuid]
                unit.card = _still_known(unit.card, card)
            for unit in self._units.values():
                unit.conflict = self._conflict() or unit.held
        self.driver_version, self.cuda_version = found.driver_version, found.cuda_version
        for problem in set(found.problems).difference(self.problems):
            _log.error("GPU left out: %s", problem)
        self.problems = found.problems
        looks = self._poll()
        self._on_change()
        return None not in looks

    def leave(self) -> None:
        """Take note that the driver is gone or cannot be asked: instances may be lost with it."""
        for unit in self.units():
            unit.away = True

    def set_conflict(self, conflict: Conflict | None, *, source: str = "") -> None:
        """Withdraw all GPUs of this node because of a conflict, or end that with None.

        Each ``source`` has a conflict of its own: one source does not end another's. No GPU is
        asked.
        """
        with self._mutex:
            self._conflicts.pop(source, None)
            if conflict is not None:
                self._conflicts[source] = conflict
            units = tuple(self._units.values())
            foremost = self._conflict()
        for unit in units:
            unit.conflict = foremost or unit.held
            self.show_again(unit)

    def show_again(self, unit: GpuUnit) -> None:
        """Publish a GPU as it was last seen, with what is known of it beside. It is not asked."""
        with unit.lock.if_free() as free:
            if free:
                self._reader.show_again(unit)
        if not free:
            self.look_soon(unit.uuid)

    def poll(self) -> bool:
        """Look at every GPU that nobody works on; returns False if one was left out.

        GPUs are discovered anew when NVML describes one of them otherwise than before, and as long
        as one does not tell its UUID, or another fact, as that may pass. The others, which may be
        many, keep their description then.

        Raises:
            DriverUnavailableError: the driver is gone.
            HostError: the file with the GPUs' names cannot be written.
        """
        units, looks = self.units(), self._poll()
        if self.problems or False in looks:
            held = (u for u, look in zip(units, looks, strict=True) if look is not False)
            return self.discover({u.uuid: u.card for u in held})
        return None not in looks

    def observe(self, unit: GpuUnit) -> None:
        """Look at a GPU again after a change; the caller holds its lock. Raises no NvmlError."""
        self._reader.observe(unit)

    def show_released(self, unit: GpuUnit) -> None:
        """Publish that a GPU is released; the caller holds its lock."""
        self._reader.show_released(unit)

    def look_soon(self, uuid: str, read_back: Iterable[EntryKey] | None = None) -> None:
        """Have a GPU looked at as soon as nobody works on it. Waits for nothing.

        ``read_back``: keys of the entries whose slices were made or removed, if nothing else was
        done and NVML has confirmed that; :meth:`follow` then publishes it without a look.
        """
        unit = self.unit(uuid)
        if unit is None:
            return
        if read_back is None:
            unit.look_wanted = True
            self.looks.notify()
            return
        with self._mutex:
            unit.read_back.update(read_back)
        self._on_change()

    def follow(self) -> None:
        """Publish changes that were read back, without asking a GPU; else have the GPU looked at.

        A GPU on which somebody works is left out, as that caller calls :meth:`look_soon` when done.
        A GPU that is being looked at is looked at once more, as that look may have begun before the
        change.
        """
        for unit in [u for u in self.units() if u.read_back]:
            with unit.lock.if_free() as free:
                with self._mutex:
                    read_back, unit.read_back = unit.read_back, set()
                done = self._reader.follow(unit, read_back) if free else unit.lock.is_worked_under
            if not done:
                self.look_soon(unit.uuid)

    def look_where_wanted(self) -> None:
        """Look at all GPUs of which a look is wanted, except those on which somebody works."""
        for unit in self._to_look_at():
            with unit.lock.if_free() as free:
                if free:
                    unit.look_wanted = False
                    self.observe(unit)

    def _look_turn(self) -> float | None:
        if self._to_look_at() and not self.looks.gather(times.LOOK_GATHER_SECONDS):
            self.look_where_wanted()
        return times.BUSY_GPU_LOOK_SECONDS if self._to_look_at() else None

    def _to_look_at(self) -> list[GpuUnit]:
        return [u for u in self.units() if u.look_wanted]

    def _conflict(self) -> Conflict | None:
        """The conflict that counts: the oldest that is frozen, else the oldest of all."""
        return min(self._conflicts.values(), key=lambda c: not c.frozen, default=None)

    def _addresses(self) -> list[str] | None:
        """PCI addresses of the GPUs that are not released; None if no GPU is released.

        Without addresses GPUs are looked for by index, which touches all of them.
        """
        units = self.units()
        gone = {u.card.pci_bus_id for u in units if u.released}
        if not gone:
            return None
        known = {u.card.pci_bus_id for u in units if u.card.pci_bus_id}
        return sorted((known | listed_gpus(self._roots)) - gone)

    def _new_unit(self, number: int, card: Card) -> GpuUnit:
        root = pcie_root(card.pci_bus_id, self._roots)
        lock = FifoLock(self._on_lock_wait)
        return GpuUnit(number, card, pcie_root=root, lock=lock, clock=self._clock)

    def _poll(self) -> list[bool | None]:
        """Look at all GPUs; returns the answer of ``GpuReader.poll`` for each."""
        sharing = self._sharing()
        for unit in self.units():
            # Programs that would prevent a reset. Looked for only in need, as all of /proc is read.
            ill = bool(unit.problem[1]) and not unit.released
            unit.open_in = openers(self._roots, unit.card.minor)[:_MOST_OPENERS] if ill else ()
            unit.shares, unit.slice_shares = sharing.whole, sharing.slices
        return [self._reader.poll(unit) for unit in self.units()]


def _still_known(before: Card, now: Card) -> Card:
    """Description ``now``, or ``before`` with the new problem if NVML could not describe the GPU.

    A GPU that supported MIG and now says that it does not counts as not described: a GPU cannot
    lose that.
    """
    if before.mig_capable and not now.mig_capable and not now.reason:
        problem = "it says that MIG is not supported, and did support it before"
        now = replace(now, reason=GpuReason.NVML_ERROR, problem=problem)
    if now.reason in {"", GpuReason.MIG_PENDING} or before is now or before.geometry is None:
        return now
    return replace(before, minor=now.minor, reason=now.reason, problem=now.problem)


def assign_names(
    path: Path, gpus: Iterable[tuple[str, int]], *, hints: Mapping[str, int]
) -> dict[str, int]:
    """Assign the numbers of the names ``gpu-<n>``; returns them by UUID.

    ``path``: JSON file that keeps the numbers; new ones are in it on return.
    ``gpus``: UUID and present minor number of each GPU.
    ``hints``: numbers by UUID from elsewhere, for a file that is lost or damaged; a hint whose
    number another GPU has does not count.

    A known GPU keeps its number: minor numbers change when cards are swapped or enumerated in
    another order, and allocations refer to the names. A new GPU gets its minor number or, if that
    is taken, the lowest number that is neither taken nor the minor number of a GPU.

    Raises:
        HostError: the file cannot be written; nothing is assigned.
    """
    present, kept = list(gpus), _load_names(path)
    numbers = dict(kept)
    for uuid, number in hints.items():
        if uuid not in numbers and number not in numbers.values():
            numbers[uuid] = number
    reserved = {minor for _, minor in present}
    for uuid, minor in present:
        if uuid in numbers:
            continue
        taken = set(numbers.values())
        if minor not in taken:
            numbers[uuid] = minor
        else:
            numbers[uuid] = next(n for n in count() if n not in taken | reserved)
            _log.warning("the name gpu-%d is taken; GPU %s is gpu-%d", minor, uuid, numbers[uuid])
    if numbers != kept or not path.exists():
        data = json.dumps({"version": 1, "gpus": numbers}, indent=1).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, data, mode=0o600)
        except OSError as error:
            text = f"cannot write the GPU names {path}: {error.strerror or error}"
            raise HostError(text) from error
    return {uuid: numbers[uuid] for uuid, _ in present}


def _load_names(path: Path) -> dict[str, int]:
    try:
        pairs = json.loads(path.read_bytes())["gpus"]
        numbers = {str(uuid): int(number) for uuid, number in pairs.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.error("GPU names %s are not usable (%s); assigning anew", path, error)
        return {}
    if len(set(numbers.values())) != len(numbers):
        _log.error("GPU names %s give one name to two GPUs; assigning anew", path)
        return {}
    return numbers


def used_names(entries: Iterable[Entry]) -> dict[str, int]:
    """Numbers, by the GPU's UUID, in the names of the devices that the journal has."""
    return {e.gpu: parse_device(e.device).minor for e in entries}
