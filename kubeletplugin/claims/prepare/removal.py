"""Removal of one entry's slice from the hardware, step by step, each recorded in the journal."""

from __future__ import annotations

import logging
from dataclasses import replace

from dra.gpu.geometry import Profile
from kubeletplugin.claims.prepare.ready_entries import ready_entry, suspect_entry
from kubeletplugin.claims.sharing.slice_sharers import SliceSharers
from kubeletplugin.errors import HardwareError, PluginError
from kubeletplugin.gpus.ownership.identity import FoundInstance, Identity
from kubeletplugin.journal.entries import ARRIVING, LEAVING, Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import GpuLostError, HangError, InUseError, NvmlError, reset
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import (
    create_gpu_instance,
    destroy_compute_instances,
    destroy_gpu_instance,
    processes,
)
from kubeletplugin.nvml.session import Session
from kubeletplugin.telemetry.logfields import device

_log = logging.getLogger(__name__)


class Removal:
    """Removes what entries of this boot have made."""

    def __init__(self, session: Session, journal: Journal, identity: Identity) -> None:
        self._session = session
        self._journal = journal
        self._identity = identity
        self._sharers = SliceSharers(journal, identity)

    def remove(self, entry: Entry, *, keep: bool = False, ready: bool = False) -> str:
        """Destroy what is left of an entry's slice and forget the entry; the GPU's lock is held.

        One that kubelet was told of is lost instead (``Entry.gone``). With ``keep`` the GPU
        instance stays, and the entry says that it is idle; if ``ready``, it is a claim's no more.
        A slice that other claims have too stays as it is. Nothing left is fine, and so is what may
        be another's in its place: it is left alone, and the answer says in words what it is.

        Where a GPU instance vanishes although its destruction failed, the place is suspect: another
        entry keeps it unavailable (``Entry.suspect``). To remove that one an instance is made there
        first.

        Raises:
            NvmlError: something is left, InUseError if processes hold it.
            HardwareError: the place is suspect still.
            HostError: the journal cannot be written; the entry stays.
        """
        if keep and entry.idle:
            return ""
        if self._sharers.stays(entry):
            self.forget(entry)
            return ""
        seen = self._identity.find_own_instance(entry)
        if entry.suspect and seen == FoundInstance():
            seen = self._made_there(entry)
        if seen.own is not None:
            gi_id = seen.own.id
            if not seen.bare:  # what somebody puts into an empty one keeps it from being destroyed
                self._empty(entry, gi_id)
            bare = entry.at(State.CI_DESTROYED, gi_id=gi_id, ci_id=None, mig_uuid="")
            if keep:
                idle = replace(bare, idle=True)
                if ready:
                    self._journal.exchange(entry, ready_entry(idle))
                else:
                    self._journal.put(idle)
                return ""
            if entry.state is not State.CI_DESTROYED:
                self._note(bare)
            self._destroy(entry, gi_id)
        self.forget(entry)
        if not seen.other:
            return ""
        return f"{seen.other}; it may be another's and is left alone: if it is not, {seen.remedy}"

    def processes(self, entry: Entry) -> tuple[int, ...]:
        """Ids of the processes that lose an entry's slice with it, as far as NVML tells.

        None do while other claims share it; whose they are NVML does not tell.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        if self._sharers.stays(entry):
            return ()
        found = self._identity.own_instance(entry)
        return () if found is None else processes(self._session, entry.gpu, found.id)

    def is_bare(self, entry: Entry) -> bool:
        """True if of an entry's slice only the GPU instance is left.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        return self._identity.find_own_instance(entry).bare

    def forget(self, entry: Entry) -> None:
        """Forget an entry of which nothing is left, or record that it is lost.

        Raises:
            HostError: the journal cannot be written; the entry stays.
        """
        gone = entry.gone()
        if gone is None:
            self._journal.remove(entry)
        else:
            self._journal.put(gone)

    def _made_there(self, entry: Entry) -> FoundInstance:
        """An instance at a place that is suspect; none where MIG mode is off, which ends it.

        Raises:
            HardwareError: the GPU makes none there.
            NvmlError: it cannot be asked.
        """
        mode = mig_mode(self._session, self._session.device(entry.gpu), gpu=entry.gpu)
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
            raise  # nothing was destroyed, or nothing is known of it
        except NvmlError as error:
            if self._identity.find_own_instance(entry.at(State.CI_DESTROYED, gi_id=gi_id)).own:
                raise
            why = _still_held(entry.gpu, error)
            _log.warning("placement unavailable", extra=device(entry, error=why))
            self._journal.put(suspect_entry(entry, why))

    def _empty(self, entry: Entry, gi_id: int) -> None:
        if entry.state not in LEAVING or entry.ci_id is not None or entry.quarantined:
            self._mark(entry, entry.at(State.DESTROYING, gi_id=gi_id, ci_id=None))
        destroy_compute_instances(self._session, entry.gpu, gi_id)

    def _mark(self, entry: Entry, marked: Entry) -> None:
        """Record that a slice is about to go.

        It stays until that can be recorded: without the mark a process that finds half of it could
        not tell whose it is. What is half made itself goes all the same.
        """
        if entry.state in ARRIVING:
            self._note(marked)
        else:
            self._journal.note(marked)

    def _note(self, entry: Entry) -> None:
        """Record a step; on a full disk the next is taken all the same, as the entry stays."""
        try:
            self._journal.note(entry)
        except PluginError as error:
            _log.warning("the journal cannot be written", extra=device(entry, error=str(error)))


def _still_held(gpu: str, error: NvmlError) -> str:
    return (
        "the GPU may still hold the place of an instance whose removal failed and which NVML lists "
        f"no more ({error}); it is offered again once an instance can be made there, which is "
        f"tried again and again; if that takes long, {reset(gpu)}"
    )
