"""Brings each GPU of the node to the node's mode: layout, whole GPUs, or slices on demand.

In mode layout, ready slices are made. A change of a GPU waits until no claim holds a slice, or the
whole GPU, that the change would remove; meanwhile the GPU is offered to no new claim. Slices that
the new layout has too stay.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from api.nodeclass import LayoutEntry
from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Occupant, Profile
from dra.gpu.inventory import GpuReason, NodeMode
from dra.gpu.layouts import Choice, PlacingError, place
from kubeletplugin.claims.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.slices import Slices
from kubeletplugin.common import Common
from kubeletplugin.errors import HostError, PluginError
from kubeletplugin.gpus.gpu import DeclaredLayout, GpuUnit
from kubeletplugin.gpus.identity import how_to_remove
from kubeletplugin.journal.entries import LEAVING, Entry, intended_entry, occupant_of, ready_entry
from kubeletplugin.nvml.errors import NvmlError, disable_mig, enable_mig
from kubeletplugin.nvml.instances import GpuInstance, list_compute_instances
from kubeletplugin.telemetry.observer import device
from kubeletplugin.times import LAYOUT_GRACE_SECONDS

_log = logging.getLogger(__name__)
_PENDING, _SUCCESS, _FAILED = "pending", "success", "failed"


@dataclass(slots=True)
class _Change:
    """Change of one GPU to the node's mode.

    ``waits``: text on what the change waits for; empty if it is done. ``failed``: it cannot be
    made. ``since``: monotonic time from which nothing of the GPU is offered. ``asked``: monotonic
    time as of which the allocations of claims have to be known; None if they are not needed.
    ``mig``: MIG mode that the GPU is to have; None: it stays. ``is_known``: the wanted state of the
    GPU was known at least once.
    """

    waits: str = ""
    failed: bool = False
    since: float | None = None
    asked: float | None = None
    mig: bool | None = None
    is_known: bool = False


class Layouts:
    """Brings the node's mode to all GPUs, in the thread that looks at the hardware.

    ``choice``: returns the chosen mode and layout. ``leaves``: True for the name of a GPU that is
    to be released. ``allocated``: finds allocated claims, asking the API server without a lock.
    :attr:`mode`: state of the change, for the MigNode.
    """

    def __init__(
        self,
        common: Common,
        slices: Slices,
        allocated: AllocatedElsewhere,
        *,
        choice: Callable[[], Choice | None],
        leaves: Callable[[str], bool],
    ) -> None:
        self._journal = common.journal
        self._reports = common.reports
        self._clock = common.clock
        self._hardware = slices.hardware
        self._slices = slices
        self._ready = ReadySlices(slices)
        self._allocated = allocated
        self._choice = choice
        self._leaves = leaves
        self._enable_mig = common.options.enable_mig
        self._on_change = common.changed
        self.mode: NodeMode | None = None
        self.grace = LAYOUT_GRACE_SECONDS
        self._begun = self._unconfigured = False
        self._changes: defaultdict[str, _Change] = defaultdict(_Change)

    def begin(self) -> None:
        """Let ``settle`` change GPUs from now on, as the claims of the last run are recovered."""
        self._begun = True
        self.settle(at_once=True)

    def wants_mig(self, unit: GpuUnit) -> bool | None:
        """MIG mode to which the GPU may be switched now; None: it stays as it is."""
        wanted = self._changes[unit.uuid].mig
        return True if wanted is None and self._unconfigured and self._enable_mig else wanted

    def settle(self, *, at_once: bool = False) -> float | None:
        """Change each GPU as far as possible now.

        ``at_once``: do not wait for the controller to hear of a change, as the plugin just starts.
        Returns seconds until the next call can do more; None if it waits for something else.
        """
        choice = self._choice()
        self._unconfigured = choice is None
        if self._begun and choice is None:
            self._adopted()
        if not self._begun or (choice is None and self.mode is None and not self._left_over()):
            return None
        for change in self._changes.values():
            change.mig = change.asked = None
        by_address = sorted(self._hardware.units(), key=lambda u: u.card.pci_bus_id)
        self._gpus(enumerate(by_address), choice, at_once=at_once)
        times = [t for c in self._changes.values() if (t := c.asked) is not None]
        if times and self._allocated.look(max(times)):
            asked = [
                (i, u) for i, u in enumerate(by_address) if self._changes[u.uuid].asked is not None
            ]
            self._gpus(asked, choice, at_once=at_once)
        if by_address and all(self._changes[u.uuid].is_known for u in by_address):
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
        """True if the controller may not have heard yet that a GPU is about to change."""
        times = [t for c in self._changes.values() if (t := c.since) is not None]
        return any(self._clock.monotonic() - t < self.grace for t in times)

    def _left_over(self) -> bool:
        return any(e.ready for e in self._journal.entries())

    def _can_change(self, unit: GpuUnit) -> bool:
        conflict, (reason, words) = unit.conflict, unit.problem
        frozen = conflict is not None and conflict.frozen
        broken = words and reason != GpuReason.MIG_PENDING
        return not (unit.released or broken or unit.unhealthy or frozen)

    def _gpu(self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool) -> None:
        before = unit.layout
        change = self._changes[unit.uuid]
        change.failed = False
        try:
            layout = self._wanted(unit, index, choice, at_once=at_once)
        except (NvmlError, PluginError) as error:
            change.failed = True
            layout = replace(before or DeclaredLayout(""), waits=str(error))
        except PlacingError as error:
            change.failed = True
            card = unit.card
            name = choice.layout if choice else ""
            text = f"{unit.name} ({card.product_name}) cannot have the layout {name!r}: {error}"
            layout = replace(before or DeclaredLayout(name), waits=text)
        if layout is not None and layout.waits:
            layout = replace(layout, failed=change.failed)
        change.waits = layout.waits if layout is not None else ""
        if not change.waits:
            change.since = None
        if layout != before:
            unit.layout = layout
            self._hardware.observe(unit)

    def _wanted(
        self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool
    ) -> DeclaredLayout | None:
        """The GPU's layout after what can be done now, with what it waits for.

        None for slices on demand, and for a GPU that is whole already.
        """
        before = unit.layout
        if self._leaves(unit.name):
            self._ready.remove(unit)
            return before
        if self._journal.rebuild:
            return before  # an instance without an entry may be a claim's
        if choice is not None and choice.problem:
            if not choice.passing:
                self._changes[unit.uuid].failed = True
            # A layout in effect stays; a GPU in no known state is not offered.
            made = before is not None and not before.waits
            return before if made else DeclaredLayout(choice.layout, waits=choice.problem)
        layout = self._chosen(unit, index, choice, at_once=at_once)
        self._changes[unit.uuid].is_known = True
        return layout

    def _chosen(
        self, unit: GpuUnit, index: int, choice: Choice | None, *, at_once: bool
    ) -> DeclaredLayout | None:
        card = unit.card
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
        """Have MIG mode turned on for slices on demand, once no claim holds the GPU whole."""
        card = unit.card
        if card.mig_enabled or not (card.mig_capable and card.switches_mig):
            return None
        waits = self._held(unit, None, at_once=at_once)
        if not waits:
            self._changes[unit.uuid].mig = True
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
        if not unit.card.mig_enabled:
            self._ready.remove(unit)
            return None
        waits = self._held(unit, (), at_once=at_once)
        if not waits:
            self._ready.remove(unit)
            remedy = disable_mig(
                unit.uuid,
                node=self._reports.node_name,
                gpu=unit.name,
                switches=unit.card.switches_mig,
            )
            waits = f"MIG mode of {unit.name} is on; {remedy}"
            if self._policy(choice) == "switch":
                self._changes[unit.uuid].mig = False
        return DeclaredLayout(choice.layout or "whole", waits=waits)

    def _layout(
        self, unit: GpuUnit, choice: Choice, entry: LayoutEntry, *, at_once: bool
    ) -> DeclaredLayout:
        card, before = unit.card, unit.layout
        if card.geometry is None:
            waits = self._held(unit, None, at_once=at_once)
            if not waits:
                waits = f"MIG mode of {unit.name} is off; {self._turn_on(unit)}"
                if self._policy(choice) != "keep":
                    self._changes[unit.uuid].mig = True
            return DeclaredLayout(choice.layout, waits=waits)
        if card.problem:
            return replace(before or DeclaredLayout(choice.layout), waits=card.problem)
        bare = self._ready.bare(unit) if self._journal.unadopted else []
        slices = self._places(unit, entry, [_occupant(gi) for gi in bare])
        self._ready.adopt(unit, [gi for gi in bare if _occupant(gi) in slices])
        settled = before is not None and not before.waits and before.slices == slices
        if not settled and (waits := self._held(unit, slices, at_once=at_once)):
            return DeclaredLayout(choice.layout, slices, waits)
        if made := self._ready.make(unit, slices):
            _log.info("%s: %d ready slices made for layout %s", unit.name, made, choice.layout)
        return DeclaredLayout(choice.layout, slices)

    def _places(
        self, unit: GpuUnit, entry: LayoutEntry, bare: Collection[Occupant]
    ) -> tuple[Occupant, ...]:
        """Placements and profiles of the layout's slices on a GPU.

        They are those of before if the counts are the same; otherwise slices that exist are used
        first. ``bare``: instances that may have been ready slices before the journal was lost.
        """
        geometry, before = unit.card.geometry, unit.layout
        if geometry is None:
            return ()
        names = {p.id: p.name for p in geometry.profiles}
        if before is not None:
            had = Counter(names.get(o.profile_id or 0, "") for o in before.slices)
            if had == Counter(dict(entry.counts)):
                return before.slices
        entries = self._journal.of_gpu(unit.uuid)
        staying = (occupant_of(e) for e in entries if e.ready or e.state not in LEAVING)
        foreign = [o for o in map(_occupant, self._slices.foreign(unit)) if o not in bare]
        present = [*bare, *dict.fromkeys(o for o in staying if o is not None)]
        return place(geometry, entry.counts, present, foreign=foreign)

    def _adopted(self) -> None:
        """Record in the journal that no ready slice is missing from it any more."""
        if not self._journal.unadopted or self._journal.rebuild:
            return
        try:
            self._journal.adopted()
        except HostError as error:
            _log.warning("%s", error)

    def _held(self, unit: GpuUnit, slices: tuple[Occupant, ...] | None, *, at_once: bool) -> str:
        """Text on what has to go before the GPU can change; empty if nothing has to.

        ``slices``: only these may stay; None: any slices may, but no holder of the whole GPU. The
        API server is asked only if nothing in the journal or on the hardware is in the way.
        """
        now = self._clock.monotonic()
        change = self._changes[unit.uuid]
        since = change.since = now if change.since is None else change.since
        found = list(self._ready.in_the_way(unit, slices))
        if not found:
            quiet = since if at_once else since + self.grace
            if now < quiet:
                return f"{unit.name} is about to change"
            change.asked = quiet
            given = self._allocated.names(unit, slices, since=quiet)
            if given is None:
                return f"{unit.name} is about to change"
            found = given
        return f"{unit.name} waits for {', '.join(found)} to go" if found else ""

    def _tell(self, choice: Choice | None, units: Iterable[GpuUnit]) -> None:
        mode = None
        if choice is not None:
            changes = [self._changes[u.uuid] for u in units]
            waits = [c.waits for c in changes if c.waits]
            message = "; ".join(dict.fromkeys(waits)) or choice.problem
            state = _PENDING if message else _SUCCESS
            is_wrong = bool(choice.problem) and not choice.passing
            if is_wrong or any(c.failed for c in changes):
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


class ReadySlices:
    """Makes and removes ready slices: slices of a layout that no claim holds.

    Every method is called with the GPU's lock held. It raises NvmlError, and HostError if the
    journal cannot be written.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._hardware = slices.hardware
        self._journal = slices.journal

    def in_the_way(self, unit: GpuUnit, slices: Collection[Occupant] | None) -> Iterator[str]:
        """Texts that name the claims and GPU instances because of which a GPU cannot be changed.

        ``slices``: the only slices that may stay; a claim with any other is in the way. None: all
        slices may stay; only a claim with the whole GPU is in the way.
        """
        entries = self._journal.of_gpu(unit.uuid)
        for entry in entries:
            occupant = occupant_of(entry)
            stays = (
                occupant is not None
                if slices is None
                else occupant in slices and entry.state not in LEAVING
            )
            if not entry.ready and not stays:
                where = f"{entry.profile} at {entry.placement}" if entry.placement else "all of it"
                yield entry.holder() if entry.suspect else f"claim {entry.claim} ({where})"
        for gi in self._slices.foreign(unit):
            if any(gi.placement.overlaps(o.placement) for o in slices or ()):
                yield (
                    f"GPU instance {gi.id} at {gi.placement}, which this plugin did not make "
                    f"({how_to_remove(unit.uuid, gi.id)})"
                )

    def bare(self, unit: GpuUnit) -> list[GpuInstance]:
        """Instances without an entry in the journal and without a compute instance."""
        session = self._hardware.session
        found = self._slices.foreign(unit)
        return [gi for gi in found if not list_compute_instances(session, unit.uuid, gi.id)]

    def adopt(self, unit: GpuUnit, instances: Iterable[GpuInstance]) -> None:
        """Record instances as ready slices, after the journal was lost."""
        for gi in instances:
            self._record(self._intended(unit, _occupant(gi)), gi, "found on the hardware")

    def make(self, unit: GpuUnit, slices: Collection[Occupant]) -> int:
        """Make those of ``slices`` that are missing, and remove other ready slices.

        Returns the number of slices made.
        """
        self.remove(unit, but=slices)
        for entry in self._ready(unit):
            if not self._slices.is_bare(entry):  # gone, or not ours any more
                self._journal.remove(entry)
        held = {occupant_of(e) for e in self._journal.of_gpu(unit.uuid)}
        missing = [o for o in slices if o not in held]
        for occupant in missing:
            self._make(unit, occupant)
        return len(missing)

    def remove(self, unit: GpuUnit, *, but: Collection[Occupant] = ()) -> None:
        """Remove the ready slices of a GPU except those in ``but``."""
        for entry in self._ready(unit):
            if occupant_of(entry) not in but:
                _log.info("ready slice removed", extra=device(entry))
                self._slices.remove(entry)

    def _ready(self, unit: GpuUnit) -> list[Entry]:
        return [e for e in self._journal.of_gpu(unit.uuid) if e.ready]

    def _intended(self, unit: GpuUnit, occupant: Occupant) -> Entry:
        profile, boot_id = self._profile(unit, occupant), self._hardware.boot_id
        return intended_entry(unit.uuid, unit.number, profile, occupant.placement, boot_id=boot_id)

    @staticmethod
    def _profile(unit: GpuUnit, occupant: Occupant) -> Profile:
        geometry = unit.card.geometry
        profile = (
            geometry.by_id(occupant.profile_id)
            if geometry is not None and occupant.profile_id is not None
            else None
        )
        if profile is None:
            raise ValueError(f"{unit.name} has no profile {occupant.profile_id}")
        return profile

    def _make(self, unit: GpuUnit, occupant: Occupant) -> None:
        intended, profile = self._intended(unit, occupant), self._profile(unit, occupant)
        gi = self._slices.create(intended, profile, occupant.placement)
        self._record(intended, gi, "made")

    def _record(self, intended: Entry, gi: GpuInstance, how: str) -> None:
        ready = ready_entry(replace(intended, gi_id=gi.id))
        self._journal.put(ready)
        _log.info("ready slice %s", how, extra=device(ready))
