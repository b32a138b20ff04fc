"""Making and removing the slice that one journal entry stands for.

Every method is called with the lock of the entry's GPU held.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dra.geometry import Geometry, Placement, Profile
from kubeletplugin.errors import BusyError, DeviceError, HardwareError
from kubeletplugin.hardware import GpuUnit
from kubeletplugin.journal import Entry, Journal, State
from kubeletplugin.nvml.changes import (
    create_compute_instance,
    create_gpu_instance,
    destroy_gpu_instance,
)
from kubeletplugin.nvml.errors import InsufficientResourcesError, NotSupportedError
from kubeletplugin.nvml.instances import (
    GpuInstance,
    find_compute_instance,
    find_gpu_instance,
    list_gpu_instances,
)
from kubeletplugin.nvml.session import Session
from kubeletplugin.observation import belongs

_log = logging.getLogger(__name__)


class Slices:
    """The slices of this boot. Raises NvmlError, HostError (journal) and what is named below."""

    def __init__(self, session: Session, journal: Journal, *, boot_id: str) -> None:
        self._session = session
        self._journal = journal
        self._boot_id = boot_id

    def present(self, entry: Entry) -> bool:
        """Whether a prepared entry's slice is there, whole: both instances and the same UUID."""
        gi = self._own(entry)
        if gi is None or entry.ci_id is None:
            return False
        ci = find_compute_instance(self._session, entry.gpu, gi_id=gi.id, ci_id=entry.ci_id)
        return ci is not None and ci.uuid == entry.mig_uuid

    def make(self, unit: GpuUnit, entry: Entry) -> Entry:
        """Record the intent, make both instances, read them back; returns the entry with its ids.

        Raises:
            BusyError: somebody holds the placement; nothing was done.
            HardwareError: the driver says that the placement or an engine is taken.
        """
        profile, placement = _shape(unit, entry)
        self._check_free(unit, entry, placement)
        entry = entry.at(State.INTENT, boot_id=self._boot_id, gi_id=None, ci_id=None, mig_uuid="")
        self._journal.put(entry)
        try:
            gi = create_gpu_instance(self._session, unit.uuid, profile=profile, placement=placement)
        except InsufficientResourcesError as error:
            raise HardwareError(f"{error}; on {unit.name} now: {self._occupancy(unit)}") from error
        entry = entry.at(State.GI_CREATED, gi_id=gi.id)
        self._journal.put(entry)
        try:
            ci = create_compute_instance(self._session, unit.uuid, gi_id=gi.id, profile=profile)
        except NotSupportedError:
            # Known only once a GPU instance exists: from now on the profile is not offered.
            unit.refused_profiles.add(profile.id)
            raise
        entry = entry.at(State.CI_CREATED, ci_id=ci.id, mig_uuid=ci.uuid)
        self._journal.put(entry)
        return entry

    def remove(self, entry: Entry) -> None:
        """Destroy what is left of an entry's slice; nothing left, or another's, is fine."""
        gi = self._own(entry)
        if gi is not None:
            destroy_gpu_instance(self._session, entry.gpu, gi.id)

    def _own(self, entry: Entry) -> GpuInstance | None:
        """The GPU instance that this entry made, recognised by all that the entry knows of it."""
        if entry.boot_id != self._boot_id or entry.placement is None or entry.profile_id is None:
            return None
        if entry.gi_id is None:
            # The process ended between creating it and recording its id.
            shape = Profile(entry.profile_id, entry.profile, 0, 0, 0, (entry.placement,))
            found = list_gpu_instances(self._session, entry.gpu, Geometry((shape,)))
            return next((gi for gi in found if belongs(gi, entry, self._boot_id)), None)
        gi = find_gpu_instance(self._session, entry.gpu, entry.gi_id)
        if gi is None or not belongs(gi, entry, self._boot_id):
            return None
        if entry.ci_id is not None:
            # Ids are used again, UUIDs are not. Without a compute instance only ids can tell.
            ci = find_compute_instance(self._session, entry.gpu, gi_id=gi.id, ci_id=entry.ci_id)
            if ci is not None and ci.uuid != entry.mig_uuid:
                _log.warning("%s: instance %d is another's: %s", entry.device, gi.id, ci.uuid)
                return None
        return gi

    def _check_free(self, unit: GpuUnit, entry: Entry, placement: Placement) -> None:
        for other in self._journal.of_gpu(unit.uuid):
            if other.key != entry.key and (
                other.placement is None or other.placement.overlaps(placement)
            ):
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by {_holder(other)}; "
                    "it is free once that claim is unprepared"
                )
        own = self._own(entry)
        for gi in self._on(unit):
            if gi != own and gi.placement.overlaps(placement):
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by GPU instance {gi.id} "
                    f"(profile {gi.profile_id} at {gi.placement}), which this plugin did not make; "
                    f"remove it with nvidia-smi mig -i {unit.uuid} -dci -gi {gi.id} and "
                    f"-dgi -gi {gi.id}, or let the claim be placed elsewhere"
                )

    def _occupancy(self, unit: GpuUnit) -> str:
        return describe_occupants(self._on(unit), self._journal.of_gpu(unit.uuid), self._boot_id)

    def _on(self, unit: GpuUnit) -> tuple[GpuInstance, ...]:
        if unit.card.geometry is None:
            return ()
        return list_gpu_instances(self._session, unit.uuid, unit.card.geometry)


def describe_occupants(
    present: Iterable[GpuInstance], entries: Iterable[Entry], boot_id: str
) -> str:
    """What is on a GPU, for an error: placements with their holders."""
    known = list(entries)
    parts: list[str] = []
    for gi in present:
        entry = next((e for e in known if belongs(gi, e, boot_id)), None)
        holder = _holder(entry) if entry else "not made by this plugin"
        parts.append(f"{gi.placement} GPU instance {gi.id} ({holder})")
    return ", ".join(parts) or "no instances"


def _holder(entry: Entry) -> str:
    return f"claim {entry.claim} (UID {entry.claim.uid}, {entry.device}, {entry.state.value})"


def _shape(unit: GpuUnit, entry: Entry) -> tuple[Profile, Placement]:
    """Profile and placement of an entry, as its GPU offers them now.

    Raises:
        DeviceError: MIG mode is off, or the GPU does not offer them any more.
    """
    check_mig(unit)
    geometry = unit.geometry
    profile = (
        geometry.by_id(entry.profile_id) if geometry and entry.profile_id is not None else None
    )
    if profile is None or entry.placement not in profile.placements:
        raise DeviceError(f"{unit.name} offers no profile {entry.profile} at {entry.placement}")
    return profile, entry.placement


def check_mig(unit: GpuUnit) -> None:
    """Refuse a GPU on which no slice can be made now.

    Raises:
        DeviceError: says why, and what to do.
    """
    card = unit.card
    if card.problem:
        raise DeviceError(f"{unit.name} ({unit.uuid}) cannot be used: {card.problem}")
    if not card.mig_capable:
        raise DeviceError(f"{unit.name} ({unit.uuid}, {card.product_name}) has no MIG")
    if not card.mig_enabled:
        raise DeviceError(
            f"MIG mode of {unit.name} ({unit.uuid}) is off; "
            f"turn it on with: nvidia-smi -i {unit.uuid} -mig 1"
        )
