"""Slices on the GPUs of this node, each with its journal entry: found, made, destroyed.

An entry's steps are in the journal before the hardware changes. Each claim that shares a slice has
an entry with the same instance ids. The first claim to be prepared makes the instances, others use
them once they are whole, and the last one to be removed destroys them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import ClaimRef
from dra.gpu.shares import ANY_TENANT
from kubeletplugin.claims.wanted import check_available, check_room_in_slice, mode_is_off, shape_of
from kubeletplugin.errors import BusyError, HardwareError, PluginError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.identity import FoundInstance, how_to_remove
from kubeletplugin.host.processes import Holders, nobody_seen
from kubeletplugin.journal.entries import (
    ARRIVING,
    LEAVING,
    Entry,
    State,
    ready_entry,
    share_slice,
    suspect_entry,
)
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import (
    GpuLostError,
    HangError,
    InsufficientResourcesError,
    InUseError,
    NotSupportedError,
    NvmlError,
    UndeliverableError,
    reset,
)
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import (
    GpuInstance,
    create_compute_instance,
    create_gpu_instance,
    destroy_compute_instances,
    destroy_gpu_instance,
    list_gpu_instances,
)
from kubeletplugin.telemetry.observer import device

_log = logging.getLogger(__name__)


class Slices:
    """Finds, makes and destroys slices. The caller holds the lock of the GPU.

    Every method raises NvmlError if the GPU cannot be asked, and HostError if the journal cannot be
    written. ``holders``: returns text on the processes that have a GPU open. ``doubt``: called with
    a claim whose slices were made early and are in the way. Neither must block.
    """

    def __init__(
        self,
        hardware: Hardware,
        journal: Journal,
        *,
        holders: Holders = nobody_seen,
        doubt: Callable[[ClaimRef], None] = lambda _: None,
    ) -> None:
        self.hardware = hardware
        self.journal = journal
        self.holders = holders
        self._doubt = doubt
        self._session = hardware.session
        self._identity = hardware.identity
        self._boot_id = hardware.boot_id

    # -- found

    def is_bare(self, entry: Entry) -> bool:
        """True if only the GPU instance of an entry's slice exists."""
        return self._identity.find_own_instance(entry).bare

    def foreign(self, unit: GpuUnit) -> list[GpuInstance]:
        """Instances on a GPU that belong to no journal entry."""
        present = self._present(unit)
        owners = self._identity.owners(present, self.journal.of_gpu(unit.uuid))
        return [gi for gi in present if gi.id not in owners]

    def _present(self, unit: GpuUnit) -> tuple[GpuInstance, ...]:
        geometry = unit.card.geometry
        return () if geometry is None else list_gpu_instances(self._session, unit.uuid, geometry)

    def _sharers(self, entry: Entry) -> tuple[Entry, ...]:
        """The other entries that share the slice of ``entry``; none if it is not shared."""
        if entry.share is None:
            return ()
        return tuple(e for e in self.journal.of_gpu(entry.gpu) if share_slice(entry, e))

    def _whole_of_sharers(self, entry: Entry) -> Entry | None:
        """An entry that shares the slice of ``entry`` and has it whole on the GPU; or None."""
        there = (e for e in self._sharers(entry) if e.state not in LEAVING)
        return next((e for e in there if self._identity.is_whole(e)), None)

    def _stays(self, entry: Entry) -> bool:
        """True if another entry shares the slice and has it: the last one removes it."""
        return any(self._identity.own_instance(e) is not None for e in self._sharers(entry))

    # -- made

    def ensure(self, unit: GpuUnit, entry: Entry) -> Entry:
        """Make sure that an entry's slice exists: found, finished or made; returns the new entry.

        A share uses the slice if another claim has made it. All calls of NVML run as one operation
        of its thread.

        Raises:
            BusyError: somebody holds the placement; nothing was made.
            DeviceError: the GPU does not offer the profile or placement now.
            HardwareError: the driver says that the placement or an engine is taken.
        """
        if self.journal.get(entry) is None:
            check_available(unit)  # NVML cannot be asked about a released GPU
        return self._session.as_one(lambda: self._ensured(unit, entry), gpu=unit.uuid)

    def _ensured(self, unit: GpuUnit, entry: Entry) -> Entry:
        recorded = self.journal.get(entry)
        if recorded is None or recorded.gpu != unit.uuid:
            return self._shared(unit, entry, is_new=True) or self._make(unit, entry)
        if recorded.state is not State.INTENT and self._identity.is_whole(recorded):
            return recorded
        _log.info("made again", extra=device(entry))
        if (shared := self._shared(unit, entry, is_new=False)) is not None:
            return shared
        profile, _ = shape_of(unit, entry)
        seen = self._identity.find_own_instance(recorded)
        if seen.own is not None:
            if seen.bare:
                return self._compute(unit, self._bare(entry, seen.own.id), profile)
            self.remove(replace(recorded, remade=recorded.kubelet_knows))
        return self._make(unit, entry)

    def _shared(self, unit: GpuUnit, entry: Entry, *, is_new: bool) -> Entry | None:
        """The entry with the slice that another claim has made; None if there is none.

        Raises:
            BusyError: a new entry's share does not fit beside the others.
        """
        if entry.share is None:
            return None
        profile, _ = shape_of(unit, entry)
        whole = self._whole_of_sharers(entry)
        if is_new:
            others = self._sharers(entry)
            if whole is None:  # shares that are to go are removed before the slice is made
                others = tuple(e for e in others if e.state not in LEAVING)
            try:
                check_room_in_slice(unit, entry, others, memory_mib=profile.memory_mib)
            except BusyError:
                self._doubt_early(others)
                raise
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
        self.journal.note(entry)
        return entry

    def _make(self, unit: GpuUnit, entry: Entry) -> Entry:
        """Record the intent, make both instances, read them back."""
        profile, placement = shape_of(unit, entry)
        leftover = self.make_room(unit, entry, placement)
        if leftover is not None and leftover.gi_id is not None:
            detail = f"the GPU instance was left by {leftover.holder()}"
            _log.info("GPU instance used again", extra=device(entry, detail=detail))
            entry = self._bare(entry, leftover.gi_id)
            self.journal.exchange(leftover, entry)
            return self._compute(unit, entry, profile)
        before = self.journal.get(entry)
        entry = entry.at(State.INTENT, boot_id=self._boot_id, gi_id=None, ci_id=None, mig_uuid="")
        try:
            gi = self.create(entry, profile, placement)
        except (UndeliverableError, InUseError, InsufficientResourcesError) as error:
            if isinstance(error, InsufficientResourcesError):
                self._check_foreign(unit, before, placement)
            raise self._why_not_made(unit, profile, error) from error
        return self._compute(unit, self._bare(entry, gi.id), profile)

    def create(self, intended: Entry, profile: Profile, placement: Placement) -> GpuInstance:
        """Record an entry, and make its GPU instance; if nothing was made, the record is as before.

        An instance that is at the placement all the same is another program's then.
        """
        before, gpu = self.journal.get(intended), intended.gpu
        self.journal.note(intended)
        try:
            return create_gpu_instance(self._session, gpu, profile=profile, placement=placement)
        except (UndeliverableError, InUseError, InsufficientResourcesError):
            if before is None:
                self.journal.remove(intended)
            else:
                self.journal.put(before)
            raise

    def _compute(self, unit: GpuUnit, entry: Entry, profile: Profile) -> Entry:
        """Make the compute instance in the entry's GPU instance; returns the new entry."""
        if self.journal.get(entry) != entry:
            self.journal.note(entry)
        if entry.gi_id is None:
            raise ValueError(f"{entry.device} has no GPU instance")
        try:
            ci = create_compute_instance(
                self._session, unit.uuid, gi_id=entry.gi_id, profile=profile
            )
        except UndeliverableError as error:  # known only once a GPU instance exists
            raise self._why_not_made(unit, profile, error) from error
        except NotSupportedError as error:
            self._require_mode(unit, error)
            raise
        unit.delivered(profile.id)
        entry = entry.at(State.CI_CREATED, ci_id=ci.id, mig_uuid=ci.uuid)
        self.journal.note(entry)
        return entry

    def _bare(self, entry: Entry, gi_id: int) -> Entry:
        return entry.at(
            State.GI_CREATED, boot_id=self._boot_id, gi_id=gi_id, ci_id=None, mig_uuid=""
        )

    def _why_not_made(self, unit: GpuUnit, profile: Profile, error: NvmlError) -> HardwareError:
        """Error for a slice that the driver did not make, with what is in the way.

        A profile that the driver cannot deliver is published with fewer multiprocessors, or is not
        offered for a while; only in the latter case, and at the first refusal, the error passes.
        """
        if isinstance(error, UndeliverableError):
            self._require_mode(unit, error)
            unit.strike(profile.id, str(error), multiprocessors=error.deliverable)
            _log.error("%s: %s", unit.name, error)
            return HardwareError(str(error), passing=unit.refused_once(profile.id))
        present = self._present(unit)
        if isinstance(error, InUseError):
            text = str(error)
            if not present:
                # The first instance of a GPU repartitions its memory, which fails while a program
                # has a channel or memory on it (open-gpu-kernel-modules 595,
                # kernel_mig_manager.c:7680).
                text += (
                    f"; {unit.name} has no instance yet, and its first one can be made only while "
                    "no program works on the GPU or has memory of it"
                )
            return HardwareError(f"{text}{self.holders(unit.uuid, ())}", passing=error.passing)
        known = self.journal.of_gpu(unit.uuid)
        owners = self._identity.owners(present, known)
        taken = [
            f"{gi.placement} GPU instance {gi.id} "
            f"({owners[gi.id].holder() if gi.id in owners else 'not made by this plugin'})"
            for gi in present
        ]
        return HardwareError(
            f"{error}; on {unit.name} now: {', '.join(taken) or 'no instances'}",
            passing=any(e.state in LEAVING for e in known),
        )

    def _require_mode(self, unit: GpuUnit, error: NvmlError) -> None:
        """Check MIG mode after ``error``: without it NVML answers NOT_SUPPORTED to every profile.

        Raises:
            ModeError: MIG mode is off.
        """
        mode = mig_mode(self._session, unit.uuid)
        if mode is not None and not mode[0]:
            raise mode_is_off(unit) from error

    # -- in the way

    def make_room(self, unit: GpuUnit, entry: Entry, placement: Placement) -> Entry | None:
        """Remove own leftovers that overlap a placement; returns one that is to be used again.

        That leftover has the same profile and placement and only its GPU instance. It is a ready
        slice or left by a claim of the same namespace, and is idle or could not be destroyed: a
        driver was seen to refuse that (IN_USE) with no process left. None if there is no such one.

        Raises:
            BusyError: somebody holds the placement; ``passing`` if it will be free soon.
        """
        where = f"memory slices {placement} of {unit.name} are held by"
        reusable: Entry | None = None
        for other in self.journal.of_gpu(unit.uuid):
            apart = other.placement is not None and not other.placement.overlaps(placement)
            if other.key == entry.key or apart:
                continue
            if other.state not in LEAVING or other.remade:
                if self._has_nothing_yet(other, entry):
                    continue
                self._doubt_early((other,))
                raise BusyError(
                    f"{where} {other.holder()}; it is free once that claim is unprepared",
                    passing=other.early,
                )
            same = (other.profile_id, other.placement) == (entry.profile_id, placement)
            akin = other.ready or _is_akin(other, entry)
            if other.idle and same and akin and self.is_bare(other):
                reusable = other
                continue
            try:
                self.remove(other)
            except NvmlError as error:
                left = self.journal.get(other)  # as this attempt has left it
                bare = same and left is not None and self.is_bare(left)
                if bare and akin:
                    reusable = left
                    continue
                kept = " (kept from other namespaces than its own)" if bare else ""
                raise BusyError(
                    f"{where} {other.holder()}{kept}, which is being removed: {error}; it is tried "
                    "again",
                    passing=error.passing,
                ) from error
        return reusable

    def _has_nothing_yet(self, other: Entry, entry: Entry) -> bool:
        """True if ``other`` is a share of the slice of ``entry``, and the slice does not exist.

        Raises:
            BusyError: the slice is half made for ``other``, whose work finishes or removes it.
        """
        if not share_slice(other, entry):
            return False
        if self._identity.own_instance(other) is not None:
            raise BusyError(
                f"the slice {entry.device} is half made for {other.holder()}, which shares it; it "
                "is tried again",
                passing=True,
            )
        return True

    def _check_foreign(self, unit: GpuUnit, recorded: Entry | None, placement: Placement) -> None:
        """Raise BusyError if an instance that is not ours is at a placement that was refused.

        ``recorded``: entry for which an instance was to be made there, as it was before.
        """
        seen = FoundInstance()
        if recorded is not None and recorded.gpu == unit.uuid:
            seen = self._identity.find_own_instance(recorded)
        for gi in self.foreign(unit):
            if gi.placement.overlaps(placement):
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by GPU instance {gi.id} "
                    f"(profile {gi.profile_id} at {gi.placement}), which this plugin did not make"
                    f"{' as far as it can tell: ' + seen.other if seen.other else ''}; "
                    f"{how_to_remove(unit.uuid, gi.id)}, or let the claim be placed elsewhere"
                )

    def _doubt_early(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.early:
                self._doubt(entry.claim)

    # -- destroyed

    def remove(self, entry: Entry, *, keep: bool = False, ready: bool = False) -> str:
        """Destroy what is left of an entry's slice and remove the entry.

        An entry that is ``remade`` becomes ``lost`` (``Entry.gone``). ``keep``: the GPU instance
        stays, and the entry becomes idle; with ``ready`` it becomes that of a ready slice. A slice
        that other claims share stays. An instance that may be another program's is left alone.
        Returns text on such an instance; empty if there is none.

        If a GPU instance vanishes although its destruction failed, a suspect entry keeps the
        placement unavailable (``Entry.suspect``). Before that entry is removed, an instance is made
        there as a test.

        Raises:
            NvmlError: something is left; InUseError if processes hold it.
            HardwareError: the placement is still suspect.
        """
        if keep and entry.idle:
            return ""
        if self._stays(entry):
            self.forget(entry)
            return ""
        seen = self._identity.find_own_instance(entry)
        if entry.suspect and seen == FoundInstance():
            seen = self._made_there(entry)
        if seen.own is not None:
            gi_id = seen.own.id
            if not seen.bare:  # a GPU instance with compute instances cannot be destroyed
                self._empty(entry, gi_id)
            bare = entry.at(State.CI_DESTROYED, gi_id=gi_id, ci_id=None, mig_uuid="")
            if keep:
                self.journal.exchange(
                    entry, ready_entry(bare) if ready else replace(bare, idle=True)
                )
                return ""
            if entry.state is not State.CI_DESTROYED:
                self._note(bare)
            self._destroy(entry, gi_id)
        self.forget(entry)
        if not seen.other:
            return ""
        return f"{seen.other}; it may be another's and is left alone: if it is not, {seen.remedy}"

    def forget(self, entry: Entry) -> None:
        """Remove an entry whose slice is gone, or record it as lost (``Entry.gone``)."""
        gone = entry.gone()
        if gone is None:
            self.journal.remove(entry)
        else:
            self.journal.put(gone)

    def _made_there(self, entry: Entry) -> FoundInstance:
        """Make an instance at a suspect placement; none if MIG mode is off: nothing is left then.

        Raises:
            HardwareError: the GPU makes no instance there.
        """
        mode = mig_mode(self._session, entry.gpu)
        if entry.placement is None or entry.profile_id is None or (mode and not mode[0]):
            return FoundInstance()
        shape = Profile(entry.profile_id, entry.profile, 0, 0, 0, (entry.placement,))
        try:
            create_gpu_instance(self._session, entry.gpu, profile=shape, placement=entry.placement)
        except (GpuLostError, HangError):
            raise
        except NvmlError as error:
            raise HardwareError(_still_held(entry.gpu, error), passing=error.passing) from error
        return self._identity.find_own_instance(entry)

    def _destroy(self, entry: Entry, gi_id: int) -> None:
        try:
            destroy_gpu_instance(self._session, entry.gpu, gi_id)
        except (GpuLostError, HangError, InUseError):
            raise  # the instance is still there, or that is not known
        except NvmlError as error:
            if self._identity.find_own_instance(entry.at(State.CI_DESTROYED, gi_id=gi_id)).own:
                raise
            why = _still_held(entry.gpu, error)
            _log.warning("placement unavailable", extra=device(entry, error=why))
            self.journal.put(suspect_entry(entry, why))

    def _empty(self, entry: Entry, gi_id: int) -> None:
        """Destroy the compute instances, after recording the step.

        If the step of a whole slice cannot be recorded, the slice stays: a later process could not
        tell whose the rest is. A half-made slice is destroyed even then; a GPU instance that is
        left of it counts as another program's.
        """
        if entry.state not in LEAVING or entry.ci_id is not None:
            marked = entry.at(State.DESTROYING, gi_id=gi_id, ci_id=None)
            if entry.state in ARRIVING:
                self._note(marked)
            else:
                self.journal.note(marked)
        destroy_compute_instances(self._session, entry.gpu, gi_id)

    def _note(self, entry: Entry) -> None:
        """Record a step, or log why it cannot be recorded; the old entry stays then."""
        try:
            self.journal.note(entry)
        except PluginError as error:
            _log.warning("the journal cannot be written", extra=device(entry, error=str(error)))


def _is_akin(left: Entry, entry: Entry) -> bool:
    """True if the slice of ``left`` was used only in the namespace of ``entry``."""
    alone = left.share is None or left.share.tenant != ANY_TENANT
    return alone and left.claim.namespace == entry.claim.namespace


def _still_held(gpu: str, error: NvmlError) -> str:
    return (
        "the GPU may still hold the place of an instance whose removal failed and which NVML lists "
        f"no more ({error}); it is offered again once an instance can be made there, which is "
        f"tried again and again; if that takes long, {reset(gpu)}"
    )
