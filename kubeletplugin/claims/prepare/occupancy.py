"""Holders of a placement, by physical interval, from the journal and from the hardware."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.shares import ANY_TENANT
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.errors import BusyError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.ownership.identity import FoundInstance, Identity, how_to_remove
from kubeletplugin.host.processes import Holders, nobody_seen
from kubeletplugin.journal.entries import LEAVING, Entry, share_slice
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)


class Occupancy:
    """Makes room for an entry, or says who is in the way. The GPU's lock is held.

    ``holders`` says who has a GPU open. ``doubt`` hears of claims whose slices, made before kubelet
    asked for them, are in the way; it is called with the lock and must not block.
    """

    def __init__(  # noqa: PLR0913 - what makes room, and who is told
        self,
        session: Session,
        journal: Journal,
        removal: Removal,
        identity: Identity,
        *,
        holders: Holders = nobody_seen,
        doubt: Callable[[ClaimRef], None] = lambda _: None,
    ) -> None:
        self._session = session
        self._journal = journal
        self._removal = removal
        self._identity = identity
        self._holders = holders
        self.doubt = doubt

    def make_room(self, unit: GpuUnit, entry: Entry, placement: Placement) -> Entry | None:
        """Remove leftovers of ours in the way.

        Returns the leftover whose GPU instance has the very shape that is wanted and no compute
        instance, left by a claim of the same namespace or ready for any, and is kept for that or
        cannot be destroyed: it is to be used again. A driver was seen to refuse to destroy one
        (IN_USE) with no process left.

        Raises:
            BusyError: somebody holds the placement; ``passing`` if it is on its way out.
            NvmlError: the GPU cannot be asked.
        """
        reusable: Entry | None = None
        for other in self._journal.of_gpu(unit.uuid):
            if other.key == entry.key or not _overlaps(other, placement):
                continue
            if other.state not in LEAVING or other.quarantined or other.remade:
                if self._has_nothing_yet(other, entry):
                    continue
                if other.early:
                    self.doubt(other.claim)
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by {other.holder()}; "
                    "it is free once that claim is unprepared",
                    passing=other.early,
                )
            same = (other.profile_id, other.placement) == (entry.profile_id, placement)
            akin = other.ready or _is_akin(other, entry)
            if other.idle and same and akin and self._removal.is_bare(other):
                reusable = other
                continue
            try:
                self._removal.remove(other)
            except NvmlError as error:
                left = self._journal.get(other)  # as this attempt has left it
                bare = same and left is not None and self._removal.is_bare(left)
                if bare and akin:
                    reusable = left
                    continue
                kept = " (kept from other namespaces than its own)" if bare else ""
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by {other.holder()}{kept}, "
                    f"which is being removed: {error}; it is tried again",
                    passing=error.passing,
                ) from error
        self._check_foreign(unit, entry, placement, reusable)
        return reusable

    def _has_nothing_yet(self, other: Entry, entry: Entry) -> bool:
        """True if ``other`` shares the slice that ``entry`` is to have, and it is not there.

        Raises:
            BusyError: it is half made for ``other``, and is finished or removed by it.
        """
        if other.quarantined or not share_slice(other, entry):
            return False
        if self._identity.own_instance(other) is not None:
            raise BusyError(
                f"the slice {entry.device} is half made for {other.holder()}, which shares it; it "
                "is tried again",
                passing=True,
            )
        return True

    def is_draining(self, unit: GpuUnit) -> bool:
        """True if something of ours on the GPU is on its way out."""
        return any(e.state in LEAVING for e in self._journal.of_gpu(unit.uuid))

    def why_in_use(self, unit: GpuUnit) -> str:
        """Text for an error: why a GPU instance was not made for IN_USE, and who is in the way.

        The first one of a GPU switches its memory over, which fails while anybody has a channel or
        memory on it (open-gpu-kernel-modules 595.45.04, kernel_mig_manager.c:7680).
        """
        why = ""
        if not self._on(unit):
            why = (
                f"; {unit.name} has no instance yet, and its first one can be made only while no "
                "program works on the GPU or has memory of it"
            )
        return f"{why}{self._holders(unit.uuid, ())}"

    def describe(self, unit: GpuUnit) -> str:
        """Text for an error: the placements taken on a GPU, with their holders."""
        present = self._on(unit)
        known = self._journal.of_gpu(unit.uuid)
        return describe_occupants(present, self._identity.owners(present, known))

    def _check_foreign(
        self, unit: GpuUnit, entry: Entry, placement: Placement, reusable: Entry | None
    ) -> None:
        # What is not on record was never made: an instance in its place is another's.
        recorded = self._journal.get(entry)
        seen = FoundInstance()
        if recorded is not None and recorded.gpu == unit.uuid:
            seen = self._identity.find_own_instance(recorded)
        ids = {seen.own.id if seen.own else None, reusable.gi_id if reusable else None}
        for gi in self._on(unit):
            if gi.id not in ids and gi.placement.overlaps(placement):
                raise BusyError(
                    f"memory slices {placement} of {unit.name} are held by GPU instance {gi.id} "
                    f"(profile {gi.profile_id} at {gi.placement}), which this plugin did not make"
                    f"{' as far as it can tell: ' + seen.other if seen.other else ''}; "
                    f"{how_to_remove(unit.uuid, gi.id)}, or let the claim be placed elsewhere"
                )

    def _on(self, unit: GpuUnit) -> tuple[GpuInstance, ...]:
        geometry = unit.known.card.geometry
        if geometry is None:
            return ()
        return list_gpu_instances(self._session, unit.uuid, geometry)


def describe_occupants(present: Iterable[GpuInstance], whose: Mapping[int, Entry]) -> str:
    """Placements with their holders, which are entries by the instance's id."""
    parts: list[str] = []
    for gi in present:
        entry = whose.get(gi.id)
        holder = entry.holder() if entry else "not made by this plugin"
        parts.append(f"{gi.placement} GPU instance {gi.id} ({holder})")
    return ", ".join(parts) or "no instances"


def _is_akin(left: Entry, entry: Entry) -> bool:
    """True if ``entry`` may have what ``left`` has left: no other namespace had a part in that."""
    alone = left.share is None or left.share.tenant != ANY_TENANT
    return alone and left.claim.namespace == entry.claim.namespace


def _overlaps(entry: Entry, placement: Placement) -> bool:
    return entry.placement is None or entry.placement.overlaps(placement)
