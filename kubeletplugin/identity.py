"""Which GPU instance is the one that a journal entry stands for.

NVML does not say who made an instance, and gives its id again to the next. The one proof is the
UUID of the compute instance in it, which is new with each. Without that proof an instance counts
as the entry's only in the moments in which the entry itself cannot have it: before the UUID could
be recorded, and after the compute instance was destroyed by us. Whatever else lies in its place may
be another's, and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra.geometry import Geometry, Profile
from kubeletplugin.entries import ARRIVING, HELD, Entry, State
from kubeletplugin.nvml.discovery import mig_mode
from kubeletplugin.nvml.errors import NotFoundError, NotSupportedError
from kubeletplugin.nvml.instances import (
    ComputeInstance,
    GpuInstance,
    find_compute_instance,
    find_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
    processes,
)
from kubeletplugin.nvml.session import Session


@dataclass(frozen=True, slots=True)
class Sighting:
    """What lies where an entry's slice was made: its ``own`` instance, or in words somebody's.

    ``remedy`` is what an administrator can do about somebody's.
    """

    own: GpuInstance | None = None
    other: str = ""
    remedy: str = ""


def belongs(instance: GpuInstance, entry: Entry, boot_id: str) -> bool:
    """Whether an instance on the entry's GPU can be what the entry describes, as far as ids tell.

    Nothing outlives a boot: an instance where one of ours was before ``boot_id`` is another's.
    """
    return (
        entry.boot_id == boot_id
        and (instance.placement, instance.profile_id) == (entry.placement, entry.profile_id)
        and entry.gi_id in {None, instance.id}
    )


def own_instance(session: Session, entry: Entry, boot_id: str) -> GpuInstance | None:
    """The GPU instance that this entry made, if it is there and known to be no other's.

    Raises:
        NvmlError: the GPU cannot be asked.
    """
    return sight(session, entry, boot_id).own


def sight(session: Session, entry: Entry, boot_id: str, *, halved: bool = False) -> Sighting:
    """Look for the GPU instance that this entry made.

    ``halved``: this process has destroyed its compute instance and could not record it.

    Raises:
        NvmlError: the GPU cannot be asked.
    """
    if entry.boot_id != boot_id or entry.placement is None or entry.profile_id is None:
        return Sighting()
    try:
        found = _candidate(session, entry, boot_id)
        if found is None:
            return Sighting()
        doubt = _doubt(session, entry, found, halved=halved)
    except NotSupportedError:
        mode = mig_mode(session, session.device(entry.gpu), gpu=entry.gpu)
        if mode is not None and mode[0]:
            raise
        return Sighting()  # without MIG mode there are no instances
    if not doubt:
        return Sighting(found)
    return Sighting(
        None,
        f"GPU instance {found.id} of GPU {entry.gpu} lies where {entry.device} of claim "
        f"{entry.claim} was made, but {doubt}",
        how_to_remove(entry.gpu, found.id),
    )


def how_to_remove(gpu: str, gi_id: int) -> str:
    """What an administrator does with an instance that this program leaves alone."""
    return (
        f"remove it with nvidia-smi mig -i {gpu} -dci -gi {gi_id} and "
        f"nvidia-smi mig -i {gpu} -dgi -gi {gi_id}"
    )


def owners(
    session: Session, present: Iterable[GpuInstance], entries: Iterable[Entry], boot_id: str
) -> dict[int, Entry]:
    """The entries of instances on one GPU, by the instance's id; another's have none.

    Raises:
        NvmlError: the GPU cannot be asked.
    """
    known = [e for e in entries if e.placement is not None]
    found: dict[int, Entry] = {}
    for gi in present:
        for entry in known:
            if belongs(gi, entry, boot_id) and not _is_doubtful(session, entry, gi):
                found[gi.id] = entry
                break
    return found


def is_whole(session: Session, entry: Entry, boot_id: str) -> bool:
    """Whether an entry's slice is there: both instances, and the same UUID."""
    if entry.ci_id is None or not entry.mig_uuid:
        return False
    found = own_instance(session, entry, boot_id)
    return found is not None and _has_its_compute_instance(session, entry, found)


def _candidate(session: Session, entry: Entry, boot_id: str) -> GpuInstance | None:
    if entry.gi_id is not None:
        found = find_gpu_instance(session, entry.gpu, entry.gi_id)
        if found is not None:
            return found if belongs(found, entry, boot_id) else None
    if entry.profile_id is None or entry.placement is None:
        return None
    # Without an id the process ended between creating it and recording that. With one, NVML says
    # that it is gone: an instance is given up on two answers, not on one.
    shape = Profile(entry.profile_id, entry.profile, 0, 0, 0, (entry.placement,))
    listed = list_gpu_instances(session, entry.gpu, Geometry((shape,)))
    return next((gi for gi in listed if belongs(gi, entry, boot_id)), None)


def _is_doubtful(session: Session, entry: Entry, gi: GpuInstance) -> bool:
    try:
        return bool(_doubt(session, entry, gi))
    except NotFoundError:
        return True  # destroyed by someone else since it was listed


def _doubt(session: Session, entry: Entry, gi: GpuInstance, *, halved: bool = False) -> str:
    """Why an instance with an entry's ids may be another's; empty if it is the entry's."""
    if entry.mig_uuid and _has_its_compute_instance(session, entry, gi):
        return ""
    inside = list_compute_instances(session, entry.gpu, gi.id)
    if not inside:
        # Its id is taken off the record before it is destroyed, but for what is half made.
        expected = entry.ci_id is None and entry.state not in HELD
        ours = expected or halved or entry.state in {State.CI_DESTROYED, *ARRIVING}
        return "" if ours else f"without its compute instance {entry.mig_uuid}"
    strange = ", ".join(c.uuid for c in inside)
    if entry.mig_uuid:
        return f"with {strange} in place of {entry.mig_uuid}"
    if entry.gi_id is None or entry.state is State.CI_DESTROYED or len(inside) > 1:
        return f"with {strange}, which was not made for it"
    # Ended between making a compute instance and recording it: then nobody was told of it.
    pids = ", ".join(map(str, _processes(session, entry, gi)))
    return f"with {strange}, in which there are processes {pids}" if pids else ""


def _has_its_compute_instance(session: Session, entry: Entry, gi: GpuInstance) -> bool:
    wanted = ComputeInstance(-1 if entry.ci_id is None else entry.ci_id, entry.mig_uuid)
    if entry.ci_id is not None:
        found = find_compute_instance(session, entry.gpu, gi_id=gi.id, ci_id=entry.ci_id)
        if found == wanted:
            return True
    return wanted.uuid in {c.uuid for c in list_compute_instances(session, entry.gpu, gi.id)}


def _processes(session: Session, entry: Entry, gi: GpuInstance) -> tuple[int, ...]:
    try:
        return processes(session, entry.gpu, gi.id)
    except NotSupportedError:
        return ()
