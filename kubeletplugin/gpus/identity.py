"""GPU instances and the journal entries that they belong to.

NVML does not say who made an instance. An instance belongs to an entry if the entry has the same
boot, GPU, profile, placement, GPU instance id and, once known, UUID of the compute instance. Every
other instance is foreign and left alone. Ids and placements are used again, and a driver may derive
UUIDs from the placement: a slice that somebody removed and made again by hand, equal in all of
these, counts as the entry's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dra.gpu.geometry import Geometry, Profile
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.nvml.errors import InstanceNotFoundError, NotSupportedError
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import (
    GpuInstance,
    find_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
)
from kubeletplugin.nvml.session import Session


@dataclass(frozen=True, slots=True)
class FoundInstance:
    """Instance found where an entry's slice was made; all fields are empty if there is none.

    ``own``: the instance, if it is the entry's. ``whole``: the entry's compute instance is in
    ``own``. ``bare``: no compute instance is in ``own``. ``other``: text about a foreign instance;
    ``remedy``: action of an administrator against that instance.
    """

    own: GpuInstance | None = None
    whole: bool = False
    bare: bool = False
    other: str = ""
    remedy: str = ""


class Identity:
    """Finds the entries to which instances belong.

    The caller of a method holds the GPU's lock. Every method raises NvmlError.
    """

    def __init__(self, session: Session, *, boot_id: str) -> None:
        self._session = session
        self._boot_id = boot_id

    def own_instance(self, entry: Entry) -> GpuInstance | None:
        """The GPU instance that was made for this entry; None if it is gone or may be foreign."""
        return self.find_own_instance(entry).own

    def is_whole(self, entry: Entry) -> bool:
        """True if an entry's slice is there: GPU instance and compute instance, with its UUID."""
        is_recorded = entry.ci_id is not None and bool(entry.mig_uuid)
        return is_recorded and self.find_own_instance(entry).whole

    def find_own_instance(self, entry: Entry) -> FoundInstance:
        """Look for the GPU instance that was made for this entry, and judge what is there."""
        if entry.boot_id != self._boot_id or entry.placement is None or entry.profile_id is None:
            return FoundInstance()
        return self._session.as_one(lambda: self._found(entry), gpu=entry.gpu)

    def _found(self, entry: Entry) -> FoundInstance:
        try:
            found = self._candidate(entry)
            if found is None:
                return FoundInstance()
            inside = self._inside(entry, found)
        except NotSupportedError:
            mode = mig_mode(self._session, entry.gpu)
            # A GPU on which a slice was made has MIG, whatever it says now.
            if mode is None or mode[0]:
                raise
            return FoundInstance()  # without MIG mode there are no instances
        why = why_others(entry, inside)
        if not why:
            return FoundInstance(found, whole=entry.mig_uuid in inside, bare=not inside)
        contents = ", ".join(inside) or "no compute instance"
        return FoundInstance(
            other=f"GPU instance {found.id} of GPU {entry.gpu} (with {contents}) lies where "
            f"{entry.device} of claim {entry.claim} was made"
            f"{' with ' + entry.mig_uuid if entry.mig_uuid else ''}, but {why}",
            remedy=how_to_remove(entry.gpu, found.id),
        )

    def owners(
        self, present: Iterable[GpuInstance], entries: Collection[Entry]
    ) -> dict[int, Entry]:
        """Entries of the instances on one GPU, by instance id; foreign instances are left out.

        ``present``: the GPU's instances. ``entries``: all entries that the journal has of the GPU.
        """
        found: dict[int, Entry] = {}
        for gi in present:
            for entry in entries:
                if belongs(gi, entry, self._boot_id) and not self._is_doubtful(entry, gi):
                    found[gi.id] = entry
                    break
        return found

    def _candidate(self, entry: Entry) -> GpuInstance | None:
        if entry.gi_id is not None:
            found = find_gpu_instance(self._session, entry.gpu, entry.gi_id)
            if found is not None:
                return found if belongs(found, entry, self._boot_id) else None
        if entry.profile_id is None or entry.placement is None:
            return None
        # An entry without an id: the process ended after it had made the instance and before it
        # recorded that. An entry with an id: NVML says that the instance is gone, and is asked in
        # another way, as an instance is given up only after two such answers.
        shape = Profile(entry.profile_id, entry.profile, 0, 0, 0, (entry.placement,))
        listed = list_gpu_instances(self._session, entry.gpu, Geometry((shape,)))
        return next((gi for gi in listed if belongs(gi, entry, self._boot_id)), None)

    def _is_doubtful(self, entry: Entry, gi: GpuInstance) -> bool:
        try:
            return bool(why_others(entry, self._inside(entry, gi)))
        except InstanceNotFoundError:
            return True  # destroyed by someone else since it was listed

    def _inside(self, entry: Entry, gi: GpuInstance) -> tuple[str, ...]:
        """UUIDs of the compute instances in a GPU instance."""
        return tuple(c.uuid for c in list_compute_instances(self._session, entry.gpu, gi.id))


def belongs(instance: GpuInstance, entry: Entry, boot_id: str) -> bool:
    """True if an instance on the entry's GPU has the ids, placement and boot of the entry.

    ``boot_id``: the present boot. No instance outlives a boot, so that an instance in the place of
    an entry of an earlier boot is foreign.
    """
    return (
        entry.boot_id == boot_id
        and entry.placement is not None
        and (instance.placement, instance.profile_id) == (entry.placement, entry.profile_id)
        and entry.gi_id in {None, instance.id}
    )


def how_to_remove(gpu: str, gi_id: int) -> str:
    """Remedy for administrators: commands that remove an instance which this program leaves."""
    return (
        f"remove it with nvidia-smi mig -i {gpu} -dci -gi {gi_id} and "
        f"nvidia-smi mig -i {gpu} -dgi -gi {gi_id}"
    )


def why_others(entry: Entry, inside: Collection[str]) -> str:
    """Reason why an instance is foreign although :func:`belongs` is true; empty if it is ours.

    ``inside``: UUIDs of the compute instances in the instance.
    """
    if entry.mig_uuid and entry.mig_uuid in inside:
        return ""
    if not inside:
        # The compute instance's id is recorded when it is made. The record is removed before the
        # compute instance is destroyed, if the journal can be written.
        is_off_record = entry.ci_id is None and entry.state not in HELD
        has_none = is_off_record or entry.state is State.CI_DESTROYED
        return "" if has_none else "its compute instance is not in it"
    # The process ended after it had made a compute instance and before it recorded that. Without a
    # recorded GPU instance no compute instance was made; after CI_DESTROYED one in it is foreign.
    unrecorded = entry.gi_id is not None and entry.state is not State.CI_DESTROYED
    if unrecorded and not entry.mig_uuid and len(inside) == 1:
        return ""
    return "another compute instance is in it"
