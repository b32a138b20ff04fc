"""Creation of the slice of one journal entry.

Every method is called with the lock of the entry's GPU held.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from dra.gpu.geometry import Placement, Profile
from kubeletplugin.claims.prepare.gpu_checks import check_available, check_mig, mode_is_off
from kubeletplugin.claims.prepare.occupancy import Occupancy
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.claims.sharing.slice_sharers import SliceSharers, check_share
from kubeletplugin.errors import BusyError, DeviceError, HardwareError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.ownership.identity import Identity
from kubeletplugin.journal.entries import LEAVING, Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import (
    InsufficientResourcesError,
    InUseError,
    NotSupportedError,
    NvmlError,
    UndeliverableError,
)
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import create_compute_instance, create_gpu_instance
from kubeletplugin.nvml.session import Session
from kubeletplugin.telemetry.logfields import device

_log = logging.getLogger(__name__)


class Slices:
    """The slices of this boot. Raises NvmlError, HostError (journal) and what is named below."""

    def __init__(  # noqa: PLR0913 - what a slice touches
        self,
        session: Session,
        journal: Journal,
        occupancy: Occupancy,
        removal: Removal,
        identity: Identity,
        *,
        boot_id: str,
    ) -> None:
        self._session = session
        self._journal = journal
        self._occupancy = occupancy
        self._removal = removal
        self._identity = identity
        self._sharers = SliceSharers(journal, identity)
        self._boot_id = boot_id

    def ensure(self, unit: GpuUnit, entry: Entry) -> Entry:
        """The entry with its slice: as it was left, finished, or made anew at its placement.

        A share has the slice that other claims have already, if they have. All calls of NVML are
        one operation, which wakes its thread once.

        Raises:
            BusyError: somebody holds the placement; nothing was done.
            DeviceError: the GPU does not offer it now.
            HardwareError: the driver says that the placement or an engine is taken.
        """
        if self._journal.get(entry) is None:
            check_available(unit.known)  # of a GPU that is released NVML cannot be asked
        return self._session.as_one(lambda: self._ensured(unit, entry), gpu=unit.uuid)

    def _ensured(self, unit: GpuUnit, entry: Entry) -> Entry:
        recorded = self._journal.get(entry)
        if recorded is None or recorded.gpu != unit.uuid:
            return self._shared(unit, entry, is_new=True) or self._make(unit, entry)
        if recorded.state is not State.INTENT and self._identity.is_whole(recorded):
            return recorded
        _log.info("made again", extra=device(entry))
        if (shared := self._shared(unit, entry, is_new=False)) is not None:
            return shared
        profile, _ = _shape(unit, entry)
        found = self._identity.own_instance(recorded)
        if found is not None:
            if self._removal.is_bare(recorded):
                return self._compute(unit, self._bare(entry, found.id), profile)
            self._removal.remove(replace(recorded, remade=recorded.kubelet_knows))
        return self._make(unit, entry)

    def _shared(self, unit: GpuUnit, entry: Entry, *, is_new: bool) -> Entry | None:
        """The entry with the slice that other claims have, None if none has; a new one has to fit.

        Raises:
            BusyError: it does not fit.
        """
        if entry.share is None:
            return None
        profile, _ = _shape(unit, entry)
        whole = self._sharers.whole(entry)
        if is_new:
            others = self._sharers.of(entry)
            if whole is None:  # what is on its way out is removed before anything is made
                others = tuple(e for e in others if e.state not in LEAVING or e.quarantined)
            self._check(unit, entry, others, profile)
        if whole is None:
            return None
        detail = f"the slice of {whole.holder()} is shared"
        _log.info("slice shared", extra=device(entry, detail=detail))
        entry = entry.at(
            State.CI_CREATED,
            boot_id=self._boot_id,
            gi_id=whole.gi_id,
            ci_id=whole.ci_id,
            mig_uuid=whole.mig_uuid,
        )
        self._journal.note(entry)
        return entry

    def _check(
        self, unit: GpuUnit, entry: Entry, others: tuple[Entry, ...], profile: Profile
    ) -> None:
        try:
            check_share(unit, entry, others, memory_mib=profile.memory_mib)
        except BusyError:
            for other in others:
                if other.early:
                    self._occupancy.doubt(other.claim)
            raise

    def _make(self, unit: GpuUnit, entry: Entry) -> Entry:
        """Record the intent, make both instances, read them back."""
        profile, placement = _shape(unit, entry)
        leftover = self._occupancy.make_room(unit, entry, placement)
        if leftover is not None and leftover.gi_id is not None:
            detail = f"the GPU instance was left by {leftover.holder()}"
            _log.info("GPU instance used again", extra=device(entry, detail=detail))
            entry = self._bare(entry, leftover.gi_id)
            self._journal.exchange(leftover, entry)
            return self._compute(unit, entry, profile)
        before = self._journal.get(entry)
        entry = entry.at(State.INTENT, boot_id=self._boot_id, gi_id=None, ci_id=None, mig_uuid="")
        self._journal.note(entry)
        try:
            gi = create_gpu_instance(self._session, unit.uuid, profile=profile, placement=placement)
        except UndeliverableError as error:
            self._put_back(entry, before)
            raise self._struck(unit, profile, error) from error
        except InUseError as error:
            self._put_back(entry, before)
            raise HardwareError(
                f"{error}{self._occupancy.why_in_use(unit)}", passing=error.passing
            ) from error
        except InsufficientResourcesError as error:
            self._put_back(entry, before)
            raise HardwareError(
                f"{error}; on {unit.name} now: {self._occupancy.describe(unit)}",
                passing=self._occupancy.is_draining(unit),
            ) from error
        return self._compute(unit, self._bare(entry, gi.id), profile)

    def _compute(self, unit: GpuUnit, entry: Entry, profile: Profile) -> Entry:
        """The entry, whose GPU instance is there, with a compute instance."""
        if self._journal.get(entry) != entry or entry.gi_id is None:
            self._journal.note(entry)
        if entry.gi_id is None:
            raise ValueError(f"{entry.device} has no GPU instance")
        try:
            ci = create_compute_instance(
                self._session, unit.uuid, gi_id=entry.gi_id, profile=profile
            )
        except UndeliverableError as error:
            # Known only once a GPU instance exists.
            raise self._struck(unit, profile, error) from error
        except NotSupportedError as error:
            self._require_mode(unit, error)
            raise
        unit.delivered(profile.id)
        entry = entry.at(State.CI_CREATED, ci_id=ci.id, mig_uuid=ci.uuid)
        self._journal.note(entry)
        return entry

    def _bare(self, entry: Entry, gi_id: int) -> Entry:
        return entry.at(
            State.GI_CREATED, boot_id=self._boot_id, gi_id=gi_id, ci_id=None, mig_uuid=""
        )

    def _put_back(self, entry: Entry, before: Entry | None) -> None:
        """Undo the record of a slice that was not made: an instance at its place is another's."""
        if before is None:
            self._journal.remove(entry)
        else:
            self._journal.put(before)

    def _struck(self, unit: GpuUnit, profile: Profile, error: UndeliverableError) -> HardwareError:
        """Publish of the profile what can be had of it, or nothing for a while; what to raise.

        A first refusal passes: it is asked for again once the profile is offered again.

        Raises:
            ModeError: MIG mode went off meanwhile, so that nothing was said of the profile.
        """
        self._require_mode(unit, error)
        unit.strike(profile.id, str(error), multiprocessors=error.deliverable)
        _log.error("%s: %s", unit.name, error)
        return HardwareError(str(error), passing=unit.refused_once(profile.id))

    def _require_mode(self, unit: GpuUnit, error: NvmlError) -> None:
        """Check MIG mode, without which NVML answers NOT_SUPPORTED to everything.

        Raises:
            ModeError: it is off.
        """
        mode = mig_mode(self._session, self._session.device(unit.uuid), gpu=unit.uuid)
        if mode is not None and not mode[0]:
            raise mode_is_off(unit.known) from error


def _shape(unit: GpuUnit, entry: Entry) -> tuple[Profile, Placement]:
    """Profile and placement of an entry, as its GPU offers them now.

    Raises:
        DeviceError: MIG mode is off, or the GPU does not offer them any more.
        BusyError: another program is changing the GPU.
    """
    gpu = unit.known
    check_available(gpu)
    check_mig(gpu)
    geometry = gpu.geometry
    profile = (
        geometry.by_id(entry.profile_id) if geometry and entry.profile_id is not None else None
    )
    if profile is None or entry.placement not in profile.placements:
        why = struck = "" if entry.profile_id is None else unit.struck(entry.profile_id)
        if gpu.layout is not None and not why:
            why = f"its layout is {gpu.layout.name}"
        raise DeviceError(
            f"{unit.name} offers no profile {entry.profile} at {entry.placement}"
            + (f": {why}" if why else ""),
            passing=bool(struck) and unit.refused_once(entry.profile_id or 0),
        )
    return profile, entry.placement
