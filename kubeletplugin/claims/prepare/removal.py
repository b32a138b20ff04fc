"""Removal of one entry's slice from the hardware, step by step, each recorded in the journal."""

from __future__ import annotations

import logging

from kubeletplugin.claims.prepare.ready_entries import ready_entry
from kubeletplugin.claims.sharing.slice_sharers import SliceSharers
from kubeletplugin.errors import PluginError
from kubeletplugin.gpus.ownership.identity import Identity
from kubeletplugin.journal.entries import ARRIVING, LEAVING, Entry, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.changes import destroy_compute_instances, destroy_gpu_instance
from kubeletplugin.nvml.errors import InstanceNotFoundError
from kubeletplugin.nvml.instances import list_compute_instances, processes
from kubeletplugin.nvml.session.session import Session
from kubeletplugin.telemetry.logfields import device

_log = logging.getLogger(__name__)


class Removal:
    """Removes what entries of this boot have made."""

    def __init__(self, session: Session, journal: Journal, identity: Identity) -> None:
        self._session = session
        self._journal = journal
        self._identity = identity
        self._sharers = SliceSharers(journal, identity)
        self._without_compute_instance: set[tuple[str, str]] = set()

    def remove(self, entry: Entry, *, keep: bool = False) -> str:
        """Destroy what is left of an entry's slice and forget the entry; the GPU's lock is held.

        One that kubelet was told of is lost instead (``Entry.gone``). With ``keep`` the GPU
        instance stays, and the entry says that it is idle; that of a layout is a claim's no more.
        A slice that other claims have too stays as it is. Nothing left is fine, and so is what may
        be another's in its place: it is left alone, and the answer says in words what it is.

        Raises:
            NvmlError: something is left, InUseError if processes hold it.
            HostError: the journal cannot be written; the entry stays.
        """
        if keep and entry.idle:
            return ""
        if self._sharers.stays(entry):
            self.forget(entry)
            return ""
        has_no_compute_instance = entry.key in self._without_compute_instance
        seen = self._identity.find_own_instance(
            entry, has_no_compute_instance=has_no_compute_instance
        )
        if seen.own is not None:
            gi_id = seen.own.id
            if entry.state not in LEAVING or entry.ci_id is not None or entry.quarantined:
                self._mark(entry, entry.at(State.DESTROYING, gi_id=gi_id, ci_id=None))
            destroy_compute_instances(self._session, entry.gpu, gi_id)
            self._without_compute_instance.add(entry.key)
            if keep:
                idle = entry.at(State.CI_DESTROYED, gi_id=gi_id, ci_id=None, mig_uuid="", idle=True)
                if entry.layout:
                    ready = ready_entry(idle)
                    self._journal.exchange(entry, ready)
                    self._identity.note_made(ready)
                else:
                    self._journal.put(idle)
                self._without_compute_instance.discard(entry.key)
                return ""
            if entry.state is not State.CI_DESTROYED:
                bare = entry.at(State.CI_DESTROYED, gi_id=gi_id, ci_id=None, mig_uuid="")
                self._note(bare)
            destroy_gpu_instance(self._session, entry.gpu, gi_id)
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
        found = self._identity.own_instance(entry)
        if found is None:
            return False
        try:
            return not list_compute_instances(self._session, entry.gpu, found.id)
        except InstanceNotFoundError:
            return False

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
        self._without_compute_instance.discard(entry.key)

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
        """Record a step; on a full disk the next is taken all the same, as the entry stays.

        ``_without_compute_instance`` remembers in this process that it was taken.
        """
        try:
            self._journal.note(entry)
        except PluginError as error:
            _log.warning("the journal cannot be written", extra=device(entry, error=str(error)))
