"""Claims that have one slice together: who has it besides, and whether it stays when one leaves.

Each has a journal entry of its own with the ids of the same instances. The first to be prepared
makes them, others take part in what is whole, and the entry that goes last removes them.
"""

from __future__ import annotations

from dra.gpu.shares import sum_of, why_full
from kubeletplugin.errors import BusyError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.ownership.identity import Identity
from kubeletplugin.journal.entries import ARRIVING, HELD, LEAVING, Entry, share_slice
from kubeletplugin.journal.journal import Journal


class SliceSharers:
    """Entries that share a slice, by journal and NVML. The lock of the entry's GPU is held."""

    def __init__(self, journal: Journal, identity: Identity) -> None:
        self._journal = journal
        self._identity = identity

    def of(self, entry: Entry) -> tuple[Entry, ...]:
        """The entries that share the slice of ``entry``, without it; none if it is not shared."""
        if entry.share is None and not entry.quarantined:
            return ()
        return tuple(e for e in self._journal.of_gpu(entry.gpu) if share_slice(entry, e))

    def whole(self, entry: Entry) -> Entry | None:
        """The entry of another claim whose slice is there, and ``entry``'s as well; or None.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        there = (e for e in self.of(entry) if e.state in ARRIVING | HELD and not e.quarantined)
        return next((e for e in there if self._identity.is_whole(e)), None)

    def stays(self, entry: Entry) -> bool:
        """True if the slice is another entry's too, which removes it when it goes itself.

        Raises:
            NvmlError: the GPU cannot be asked.
        """
        return any(self._identity.own_instance(e) is not None for e in self.of(entry))


def check_share(unit: GpuUnit, entry: Entry, others: tuple[Entry, ...], *, memory_mib: int) -> None:
    """Refuse a share for which ``others`` leave no room on a slice of ``memory_mib``.

    Raises:
        BusyError: says what is left of it; ``passing`` if some of that may be given back soon.
    """
    share, offer = entry.share, unit.known.slice_sharing
    where = f"the slice {entry.profile} at {entry.placement} of {unit.known}"
    if share is None:
        return
    if offer is None:
        raise BusyError(
            f"{where} is not shared any more, and the claim was given a part of it; have the node "
            "share its slices again (sliceShares of its class), or delete the pod"
        )
    for other in others:
        if other.quarantined:
            raise BusyError(
                f"{where} is held by {other.holder()}; it is free once that claim is unprepared"
            )
    why = why_full(sum_of(e.share for e in others if e.share), share, offer, memory_mib)
    if why:
        raise BusyError(
            f"{where} has no room for one more claim: {why}; it has once a claim that shares it is "
            "unprepared",
            passing=any(e.early or e.state in LEAVING for e in others),
        )
