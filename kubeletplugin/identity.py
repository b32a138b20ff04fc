"""Which GPU instance is the one that a journal entry stands for."""

from __future__ import annotations

import logging

from dra.geometry import Geometry, Profile
from kubeletplugin.entries import Entry
from kubeletplugin.nvml.discovery import mig_mode
from kubeletplugin.nvml.errors import NotSupportedError
from kubeletplugin.nvml.instances import (
    GpuInstance,
    find_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
)
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)


def belongs(instance: GpuInstance, entry: Entry, boot_id: str) -> bool:
    """Whether an instance on the entry's GPU is what the entry describes, as far as ids tell.

    Nothing outlives a boot: an instance where one of ours was before ``boot_id`` is another's.
    """
    return (
        entry.boot_id == boot_id
        and (instance.placement, instance.profile_id) == (entry.placement, entry.profile_id)
        and entry.gi_id in {None, instance.id}
    )


def own_instance(session: Session, entry: Entry, boot_id: str) -> GpuInstance | None:
    """The GPU instance that this entry made, recognised by all that the entry knows of it.

    Ids are used again, UUIDs are not: an instance with a compute instance of another UUID is
    another's. So is one with a compute instance where this entry never came to make one.

    Raises:
        NvmlError: the GPU cannot be asked.
    """
    if entry.boot_id != boot_id or entry.placement is None or entry.profile_id is None:
        return None
    try:
        found = _candidate(session, entry, boot_id)
        if found is None:
            return None
        uuids = {c.uuid for c in list_compute_instances(session, entry.gpu, found.id)}
    except NotSupportedError:
        mode = mig_mode(session, session.device(entry.gpu), gpu=entry.gpu)
        if mode is not None and mode[0]:
            raise
        return None  # without MIG mode there are no instances
    known = {entry.mig_uuid} if entry.mig_uuid else set()
    strange = uuids - known
    if strange and (known or entry.gi_id is None):
        _log.warning(
            "%s of claim %s: GPU instance %d is another's, with %s",
            entry.device,
            entry.claim,
            found.id,
            ", ".join(sorted(strange)),
        )
        return None
    return found


def is_whole(session: Session, entry: Entry, boot_id: str) -> bool:
    """Whether an entry's slice is there: both instances, and the same UUID."""
    found = own_instance(session, entry, boot_id)
    if found is None or entry.ci_id is None:
        return False
    instances = list_compute_instances(session, entry.gpu, found.id)
    return any((c.id, c.uuid) == (entry.ci_id, entry.mig_uuid) for c in instances)


def _candidate(session: Session, entry: Entry, boot_id: str) -> GpuInstance | None:
    if entry.gi_id is not None:
        found = find_gpu_instance(session, entry.gpu, entry.gi_id)
        return found if found is not None and belongs(found, entry, boot_id) else None
    if entry.profile_id is None or entry.placement is None:
        return None
    # The process ended between creating it and recording its id.
    shape = Profile(entry.profile_id, entry.profile, 0, 0, 0, (entry.placement,))
    listed = list_gpu_instances(session, entry.gpu, Geometry((shape,)))
    return next((gi for gi in listed if belongs(gi, entry, boot_id)), None)
