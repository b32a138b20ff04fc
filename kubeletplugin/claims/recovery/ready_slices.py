"""Slices that a layout declares, made and removed on one GPU while no claim holds them.

Every method is called with the GPU's lock held, and raises NvmlError or HostError (journal).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator

from dra.gpu.geometry import Occupant, Profile
from kubeletplugin.claims.prepare.ready_entries import intended_entry, occupant_of, ready_entry
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.ownership.identity import how_to_remove
from kubeletplugin.journal.entries import LEAVING, Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import InsufficientResourcesError, UndeliverableError
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
)
from kubeletplugin.telemetry.logfields import device

_log = logging.getLogger(__name__)


class ReadySlices:
    """The ready slices of this node's GPUs. Nothing of a claim or of anybody else is touched."""

    def __init__(self, hardware: Hardware, journal: Journal, removal: Removal) -> None:
        self._hardware = hardware
        self._journal = journal
        self._removal = removal

    def in_the_way(self, unit: GpuUnit, slices: Collection[Occupant] | None) -> Iterator[str]:
        """Holders of what has to be free before these slices can be all that the GPU offers.

        None is any slices: only who holds the GPU whole is in the way then.
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
        for gi in self.foreign(unit):
            if any(gi.placement.overlaps(o.placement) for o in slices or ()):
                yield (
                    f"GPU instance {gi.id} at {gi.placement}, which this plugin did not make "
                    f"({how_to_remove(unit.uuid, gi.id)})"
                )

    def foreign(self, unit: GpuUnit) -> list[GpuInstance]:
        """The instances of others on a GPU."""
        geometry = unit.known.card.geometry
        if geometry is None:
            return []
        present = list_gpu_instances(self._hardware.session, unit.uuid, geometry)
        owners = self._hardware.identity.owners(present, self._journal.of_gpu(unit.uuid))
        return [gi for gi in present if gi.id not in owners]

    def bare(self, unit: GpuUnit) -> list[GpuInstance]:
        """Those of them without a compute instance, which nobody uses."""
        session = self._hardware.session
        found = self.foreign(unit)
        return [gi for gi in found if not list_compute_instances(session, unit.uuid, gi.id)]

    def adopt(self, unit: GpuUnit, instances: Iterable[GpuInstance]) -> None:
        """Take instances of which a lost journal has no record for ready slices."""
        for gi in instances:
            intended = self._intended(unit, Occupant(gi.placement, gi.profile_id))
            ready = ready_entry(intended, gi_id=gi.id)
            self._journal.put(ready)
            _log.warning("ready slice found on the hardware", extra=device(ready))

    def make(self, unit: GpuUnit, slices: Collection[Occupant]) -> int:
        """Have these slices on the GPU and no other ready ones; how many were made."""
        self.remove(unit, but=slices)
        for entry in self._ready(unit):
            if not self._removal.is_bare(entry):  # gone, or not ours any more
                self._journal.remove(entry)
        held = {occupant_of(e) for e in self._journal.of_gpu(unit.uuid)}
        missing = [o for o in slices if o not in held]
        for occupant in missing:
            self._make(unit, occupant)
        return len(missing)

    def remove(self, unit: GpuUnit, *, but: Collection[Occupant] = ()) -> None:
        """Remove the ready slices of a GPU except some."""
        for entry in self._ready(unit):
            if occupant_of(entry) not in but:
                _log.info("ready slice removed", extra=device(entry))
                self._removal.remove(entry)

    def _ready(self, unit: GpuUnit) -> list[Entry]:
        return [e for e in self._journal.of_gpu(unit.uuid) if e.ready]

    def _intended(self, unit: GpuUnit, occupant: Occupant) -> Entry:
        return intended_entry(
            unit, self._profile(unit, occupant), occupant.placement, boot_id=self._hardware.boot_id
        )

    @staticmethod
    def _profile(unit: GpuUnit, occupant: Occupant) -> Profile:
        geometry = unit.known.card.geometry
        profile = (
            geometry.by_id(occupant.profile_id)
            if geometry is not None and occupant.profile_id is not None
            else None
        )
        if profile is None:
            raise ValueError(f"{unit.name} has no profile {occupant.profile_id}")
        return profile

    def _make(self, unit: GpuUnit, occupant: Occupant) -> None:
        hardware, profile = self._hardware, self._profile(unit, occupant)
        intended = self._intended(unit, occupant)
        self._journal.note(intended)
        try:
            gi = create_gpu_instance(
                hardware.session, unit.uuid, profile=profile, placement=occupant.placement
            )
        except (UndeliverableError, InsufficientResourcesError):
            self._journal.remove(intended)  # an instance at its place is another's
            raise
        ready = ready_entry(intended, gi_id=gi.id)
        self._journal.put(ready)
        _log.info("ready slice made", extra=device(ready))
