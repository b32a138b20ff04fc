"""Taking one entry's slice off the hardware, step by step, each in the journal."""

from __future__ import annotations

import logging

from kubeletplugin.entries import Entry, State
from kubeletplugin.errors import PluginError
from kubeletplugin.identity import own_instance
from kubeletplugin.journal import Journal
from kubeletplugin.nvml.changes import destroy_compute_instances, destroy_gpu_instance
from kubeletplugin.nvml.errors import NotFoundError
from kubeletplugin.nvml.instances import list_compute_instances, processes
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)


class Removal:
    """Removes what entries of this boot have made."""

    def __init__(self, session: Session, journal: Journal, *, boot_id: str) -> None:
        self._session = session
        self._journal = journal
        self._boot_id = boot_id

    def remove(self, entry: Entry) -> None:
        """Destroy what is left of an entry's slice and forget the entry; the GPU's lock is held.

        Nothing left, or another's in its place, is fine.

        Raises:
            NvmlError: something is left, InUseError if processes hold it.
            HostError: the journal cannot be written; the slice is gone, the entry stays.
        """
        found = own_instance(self._session, entry, self._boot_id)
        if found is not None:
            destroy_compute_instances(self._session, entry.gpu, found.id)
            if entry.state is not State.CI_DESTROYED:
                self._note(entry.at(State.CI_DESTROYED, gi_id=found.id))
            destroy_gpu_instance(self._session, entry.gpu, found.id)
        self._journal.remove(entry)

    def processes(self, entry: Entry) -> tuple[int, ...]:
        """Ids of the processes in an entry's slice, as far as NVML tells.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        found = own_instance(self._session, entry, self._boot_id)
        return () if found is None else processes(self._session, entry.gpu, found.id)

    def is_bare(self, entry: Entry) -> bool:
        """Whether of an entry's slice only the GPU instance is left.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        found = own_instance(self._session, entry, self._boot_id)
        if found is None:
            return False
        try:
            return not list_compute_instances(self._session, entry.gpu, found.id)
        except NotFoundError:
            return False

    def _note(self, entry: Entry) -> None:
        """Record a step; on a full disk the next is taken all the same, as the entry stays."""
        try:
            self._journal.put(entry)
        except PluginError as error:
            _log.warning("%s of claim %s: %s", entry.device, entry.claim, error)
