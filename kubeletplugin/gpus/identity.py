"""GPU instances and the journal entries that they belong to.

NVML does not say who made an instance. One is an entry's if the entry has its boot, GPU, profile,
placement, GPU instance id and, once it is known, the UUID of its compute instance; every other
instance is another's, and left alone. Ids and places are given again, and a driver may make UUIDs
from the place: that somebody removed a slice and made it again by hand, alike in all of these, is
not told apart.
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
    """Instance found where an entry's slice was made: its ``own`` instance, or in words somebody's.

    ``whole``: its own compute instance is in it; ``bare``: none is. ``remedy`` is what an
    administrator can do about somebody's.
    """

    own: GpuInstance | None = None
    whole: bool = False
    bare: bool = False
    other: str = ""
    remedy: str = ""


class Identity:
    """Tells whose instances are. The lock of the GPU is held; every method raises NvmlError."""

    def __init__(self, session: Session, *, boot_id: str) -> None:
        self._session = session
        self._boot_id = boot_id

    def own_instance(self, entry: Entry) -> GpuInstance | None:
        """The GPU instance that this entry made, if it is there and known to be no other's."""
        return self.find_own_instance(entry).own

    def is_whole(self, entry: Entry) -> bool:
        """True if an entry's slice is there: both instances, and the same UUID."""
        is_recorded = entry.ci_id is not None and bool(entry.mig_uuid)
        return is_recorded and self.find_own_instance(entry).whole

    def find_own_instance(self, entry: Entry) -> FoundInstance:
        """Look for the GPU instance that this entry made."""
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
        """The entries of instances on one GPU, by the instance's id; another's have none.

        ``entries`` are all that the journal has of it.
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
        # Without an id the process ended between creating it and recording that. With one, NVML
        # says that it is gone: an instance is given up on two answers, not on one.
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
    """True if an instance on the entry's GPU can be what the entry describes, as far as ids tell.

    Nothing outlives a boot: an instance where one of ours was before ``boot_id`` is another's.
    """
    return (
        entry.boot_id == boot_id
        and entry.placement is not None
        and (instance.placement, instance.profile_id) == (entry.placement, entry.profile_id)
        and entry.gi_id in {None, instance.id}
    )


def how_to_remove(gpu: str, gi_id: int) -> str:
    """Remedy for administrators: removal of an instance that this program leaves alone."""
    return (
        f"remove it with nvidia-smi mig -i {gpu} -dci -gi {gi_id} and "
        f"nvidia-smi mig -i {gpu} -dgi -gi {gi_id}"
    )


def why_others(entry: Entry, inside: Collection[str]) -> str:
    """The reason why an instance that ``belongs`` is another's; empty if it is the entry's.

    ``inside`` are the UUIDs of its compute instances.
    """
    if entry.mig_uuid and entry.mig_uuid in inside:
        return ""
    if not inside:
        # Its id comes on record when it is made, and off it before it is destroyed if that can
        # be written.
        is_off_record = entry.ci_id is None and entry.state not in HELD
        has_none = is_off_record or entry.state is State.CI_DESTROYED
        return "" if has_none else "its compute instance is not in it"
    # Ended between making a compute instance and recording it. Where not even the GPU instance is
    # on record none was made, and where it was destroyed again another one is somebody's.
    unrecorded = entry.gi_id is not None and entry.state is not State.CI_DESTROYED
    if unrecorded and not entry.mig_uuid and len(inside) == 1:
        return ""
    return "another compute instance is in it"
