"""The node's mode on its GPUs: slices of a layout kept ready, GPUs kept whole, or left to claims.

A change waits until nobody holds what would have to go, and nothing new is given out of the GPU
meanwhile. What is there already and belongs to the new layout stays.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from api.nodeclass import LayoutEntry
from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Occupant
from dra.gpu.inventory import NodeMode
from dra.gpu.layouts import Choice, PlacingError, place
from dra.gpu.reasons import GpuReason
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.claims.prepare.ready_entries import occupant_of
from kubeletplugin.claims.recovery.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.recovery.ready_slices import ReadySlices
from kubeletplugin.errors import HostError, PluginError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.known_gpu import DeclaredLayout
from kubeletplugin.journal.entries import LEAVING
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import NvmlError, disable_mig, enable_mig
from kubeletplugin.nvml.instances import GpuInstance
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
GRACE_SECONDS = 2.0
"""Time for the controller to hear that nothing of a GPU is given out any more."""
_PENDING, _SUCCESS, _FAILED = "pending", "success", "failed"


class Layouts:
    """Settles all GPUs, in the thread that looks at the hardware.

    ``choice`` is what is to become of them, ``leaves`` says of a GPU by name that it is to be
    released, ``enable_mig`` is the option of that name. ``allocated`` asks the API server, with no
    lock held. ``on_change`` hears that :attr:`mode`, which is published, is another.
    """

    def __init__(  # noqa: PLR0913 - what is wanted, and what is there
        self,
        hardware: Hardware,
        journal: Journal,
        ready: ReadySlices,
        *,
        choice: Callable[[], Choice | None],
        leaves: Callable[[str], bool],
        enable_mig: bool,
        allocated: AllocatedElsewhere,
        reports: Reports,
        on_change: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._ready = ready
        self._choice = choice
        self._leaves = leaves
        self._enable_mig = enable_mig
        self._allocated = allocated
        self._reports = reports
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self.mode: NodeMode | None = None
        self.grace = GRACE_SECONDS
        self._begun = self._unconfigured = False
        self._waits: dict[str, str] = {}
        self._failed: set[str] = set()
        self._since: dict[str, float] = {}
        self._asking: dict[str, float] = {}
        self._mig: dict[str, bool] = {}
        self._looked_at: set[str] = set()

    def begin(self) -> None:
        """Change GPUs in ``settle`` from now on: it is known what the last run left."""
        self._begun = True
        self.settle(at_once=True)

    def wants_mig(self, unit: GpuUnit) -> bool | None:
        """MIG mode that a GPU is to have and may be given now; None: it stays as it is."""
        return self._mig.get(unit.uuid, True if self._unconfigured and self._enable_mig else None)

    def settle(self, *, at_once: bool = False) -> float | None:
        """Bring each GPU nearer to what is wanted; seconds until more can be done, or None.

        ``at_once``: nothing was given out before, so that nobody has to hear of a change first.
        """
        choice = self._choice()
        self._unconfigured = choice is None
        if self._begun and choice is None:
            self._adopted()
        if not self._begun or (choice is None and self.mode is None and not self._left_over()):
            return None
        self._mig = {}
        by_address = sorted(self._hardware.units(), key=lambda u: u.known.card.pci_bus_id)
        self._asking = {}
        self._gpus(enumerate(by_address), choice, at_once=at_once)
        if self._asking and self._allocated.look(max(self._asking.values())):
            asked = [(i, u) for i, u in enumerate(by_address) if u.uuid in self._asking]
            self._gpus(asked, choice, at_once=at_once)
        if by_address and {u.uuid for u in by_address} <= self._looked_at:
            self._adopted()
        self._tell(choice, by_address)
        return self.grace if self._heard_soon() else None

    def _gpus(
        self, units: Iterable[tuple[int, GpuUnit]], choice: Choice | None, *, at_once: bool
    ) -> None:
        for index, unit in units:
            if self._can_change(unit) and unit.lock.try_enter():
                try:
                    self._gpu(unit, index, choice, at_once=at_once)
                finally:
                    unit.lock.leave()

    def _heard_soon(self) -> bool:
        """True if somebody is still to hear that a GPU changes."""
        return any(self._clock.monotonic() - t < self.grace for t in self._since.values())

    def _left_over(self) -> bool:
        return any(e.ready for e in self._journal.entries())

    def _can_change(self, unit: GpuUnit) -> bool:
        gpu = unit.known
        frozen = gpu.conflict is not None and gpu.conflict.frozen
        broken = gpu.problem[1] and gpu.problem[0] != GpuReason.MIG_PENDING
        return not (gpu.released or broken or gpu.unhealthy or frozen)

    def _gpu(self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool) -> None:
        before = unit.known.layout
        self._failed.discard(unit.uuid)
        try:
            layout = self._wanted(unit, index, choice, at_once=at_once)
        except (NvmlError, PluginError) as error:
            self._failed.add(unit.uuid)
            layout = replace(before or DeclaredLayout(""), waits=str(error))
        except PlacingError as error:
            self._failed.add(unit.uuid)
            card = unit.known.card
            name = choice.layout if choice else ""
            text = f"{unit.name} ({card.product_name}) cannot have the layout {name!r}: {error}"
            layout = replace(before or DeclaredLayout(name), waits=text)
        if layout is not None and layout.waits:
            layout = replace(layout, failed=unit.uuid in self._failed)
        self._waits[unit.uuid] = layout.waits if layout is not None else ""
        if not self._waits[unit.uuid]:
            self._since.pop(unit.uuid, None)
        if unit.declare(layout):
            self._hardware.observe(unit)

    def _wanted(
        self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool
    ) -> DeclaredLayout | None:
        """The GPU's layout as it is by now, with what it waits for."""
        before = unit.known.layout
        if self._leaves(unit.name):
            self._ready.remove(unit)
            return before
        if self._journal.rebuild:
            return before  # what looks like nobody's may be a claim's
        if choice is not None and choice.problem:
            if not choice.passing:
                self._failed.add(unit.uuid)
            # What was made stays; a GPU of which nothing is known is not given out either way.
            made = before is not None and not before.waits
            return before if made else DeclaredLayout(choice.layout, waits=choice.problem)
        layout = self._chosen(unit, index, choice, at_once=at_once)
        self._looked_at.add(unit.uuid)
        return layout

    def _chosen(
        self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool
    ) -> DeclaredLayout | None:
        card = unit.known.card
        mode = "on-demand" if choice is None or not card.mig_capable else choice.mode
        if choice is not None and mode == "layout":
            entry = choice.of_gpu(index, device=card.pci_device_id, subsystem=card.pci_subsystem_id)
            if entry is not None and entry.counts:
                return self._layout(unit, choice, entry, at_once=at_once)
            mode = "whole" if entry is not None and not entry.mig_enabled else "on-demand"
        if choice is not None and mode == "whole":
            return self._whole(unit, choice, at_once=at_once)
        self._ready.remove(unit)
        if choice is not None and self._policy(choice) != "keep":
            return self._to_be_cut(unit, choice, at_once=at_once)
        return None

    def _to_be_cut(self, unit: GpuUnit, choice: Choice, *, at_once: bool) -> DeclaredLayout | None:
        """Have MIG mode on for slices on demand, once nobody holds the GPU whole."""
        card = unit.known.card
        if card.mig_enabled or not (card.mig_capable and card.switches_mig):
            return None
        waits = self._held(unit, None, at_once=at_once)
        if not waits:
            self._mig[unit.uuid] = True
            waits = (
                f"MIG mode of {unit.name} is off until no process uses the GPU; "
                f"{self._turn_on(unit)}"
            )
        return DeclaredLayout(choice.layout, waits=waits)

    def _policy(self, choice: Choice | None) -> str:
        chosen = "keep" if choice is None else choice.mig_mode
        return "enable" if chosen == "keep" and self._enable_mig else chosen

    def _turn_on(self, unit: GpuUnit) -> str:
        return enable_mig(unit.uuid, node=self._reports.node_name, gpu=unit.name)

    def _whole(self, unit: GpuUnit, choice: Choice, *, at_once: bool) -> DeclaredLayout | None:
        if not unit.known.card.mig_enabled:
            self._ready.remove(unit)
            return None
        waits = self._held(unit, (), at_once=at_once)
        if not waits:
            self._ready.remove(unit)
            remedy = disable_mig(
                unit.uuid,
                node=self._reports.node_name,
                gpu=unit.name,
                switches=unit.known.card.switches_mig,
            )
            waits = f"MIG mode of {unit.name} is on; {remedy}"
            if self._policy(choice) == "switch":
                self._mig[unit.uuid] = False
        return DeclaredLayout(choice.layout or "whole", waits=waits)

    def _layout(
        self, unit: GpuUnit, choice: Choice, entry: LayoutEntry, *, at_once: bool
    ) -> DeclaredLayout:
        card, before = unit.known.card, unit.known.layout
        if card.geometry is None:
            waits = self._held(unit, None, at_once=at_once)
            if not waits:
                waits = f"MIG mode of {unit.name} is off; {self._turn_on(unit)}"
                if self._policy(choice) != "keep":
                    self._mig[unit.uuid] = True
            return DeclaredLayout(choice.layout, waits=waits)
        if card.problem:
            return replace(before or DeclaredLayout(choice.layout), waits=card.problem)
        bare = self._ready.bare(unit) if self._journal.unadopted else []
        slices = self._slices(unit, entry, [_occupant(gi) for gi in bare])
        self._ready.adopt(unit, [gi for gi in bare if _occupant(gi) in slices])
        settled = before is not None and not before.waits and before.slices == slices
        if not settled and (waits := self._held(unit, slices, at_once=at_once)):
            return DeclaredLayout(choice.layout, slices, waits)
        if made := self._ready.make(unit, slices):
            _log.info("%s: %d ready slices made for layout %s", unit.name, made, choice.layout)
        return DeclaredLayout(choice.layout, slices)

    def _slices(
        self, unit: GpuUnit, entry: LayoutEntry, bare: Collection[Occupant]
    ) -> tuple[Occupant, ...]:
        """Places of the slices: those of before, those that some have, or any.

        Those ``bare`` were ready slices, perhaps, before the journal was lost.
        """
        geometry, before = unit.known.card.geometry, unit.known.layout
        if geometry is None:
            return ()
        names = {p.id: p.name for p in geometry.profiles}
        if before is not None:
            had = Counter(names.get(o.profile_id or 0, "") for o in before.slices)
            if had == Counter(dict(entry.counts)):
                return before.slices
        entries = self._journal.of_gpu(unit.uuid)
        staying = (occupant_of(e) for e in entries if e.ready or e.state not in LEAVING)
        foreign = [o for o in map(_occupant, self._ready.foreign(unit)) if o not in bare]
        present = [*bare, *dict.fromkeys(o for o in staying if o is not None)]
        return place(geometry, entry.counts, present, foreign=foreign)

    def _adopted(self) -> None:
        """No ready slice is missing from the journal any more."""
        if not self._journal.unadopted or self._journal.rebuild:
            return
        try:
            self._journal.adopted()
        except HostError as error:
            _log.warning("%s", error)

    def _held(self, unit: GpuUnit, slices: tuple[Occupant, ...] | None, *, at_once: bool) -> str:
        """Text on what has to go first; empty if nothing has. The API server is asked last.

        All but ``slices`` has, or, with None, what holds the GPU whole.
        """
        now = self._clock.monotonic()
        since = self._since.setdefault(unit.uuid, now)
        found = list(self._ready.in_the_way(unit, slices))
        if not found:
            quiet = since if at_once else since + self.grace
            if now < quiet:
                return f"{unit.name} is about to change"
            self._asking[unit.uuid] = quiet
            given = self._allocated.names(unit, slices, since=quiet)
            if given is None:
                return f"{unit.name} is about to change"
            found = given
        return f"{unit.name} waits for {', '.join(found)} to go" if found else ""

    def _tell(self, choice: Choice | None, units: Iterable[GpuUnit]) -> None:
        mode = None
        if choice is not None:
            waits = [text for u in units if (text := self._waits.get(u.uuid, ""))]
            message = "; ".join(dict.fromkeys(waits)) or choice.problem
            state = _PENDING if message else _SUCCESS
            is_wrong = bool(choice.problem) and not choice.passing
            if is_wrong or self._failed & {u.uuid for u in units}:
                state = _FAILED
            mode = NodeMode(choice.mode, state, choice.layout, message)
        before, self.mode = self.mode, mode
        if mode == before:
            return
        self._on_change()
        if mode is None:
            return
        what = f"mode {mode.mode}" + (f", layout {mode.layout}" if mode.layout else "")
        text = f"{what}: {mode.message}" if mode.message else f"{what} is in effect"
        _log.info("%s: %s", mode.state, text)
        reasons = {_FAILED: NodeReason.LAYOUT_FAILED, _PENDING: NodeReason.LAYOUT_PENDING}
        reason = reasons.get(mode.state, NodeReason.LAYOUT_APPLIED)
        self._reports.report_node(reason, text, warning=mode.state == _FAILED)


def _occupant(gi: GpuInstance) -> Occupant:
    return Occupant(gi.placement, gi.profile_id)
