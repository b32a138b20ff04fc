"""GPU instances and the journal entries that they belong to.

NVML does not say who made an instance, and gives ids and places again. What is seen is judged by
the rules of ``belonging``; whatever may be another's is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dra.gpu.geometry import Geometry, Profile
from kubeletplugin.gpus.ownership.belonging import Doubt, Evidence, Inside, doubt, is_unique
from kubeletplugin.gpus.ownership.entrywatch import EntryWatch
from kubeletplugin.journal.entries import Entry
from kubeletplugin.nvml.discovery import mig_mode
from kubeletplugin.nvml.errors import InstanceNotFoundError, NotSupportedError
from kubeletplugin.nvml.instances import (
    ComputeInstance,
    GpuInstance,
    find_gpu_instance,
    list_compute_instances,
    list_gpu_instances,
    processes,
)
from kubeletplugin.nvml.session.session import Session


@dataclass(frozen=True, slots=True)
class FoundInstance:
    """Instance found where an entry's slice was made: its ``own`` instance, or in words somebody's.

    ``whole``: its own compute instance is in it. ``remedy`` is what an administrator can do about
    somebody's.
    """

    own: GpuInstance | None = None
    whole: bool = False
    other: str = ""
    remedy: str = ""


class Identity:
    """Tells whose instances are. The lock of the GPU is held; every method raises NvmlError."""

    def __init__(self, session: Session, watch: EntryWatch, *, boot_id: str) -> None:
        self._session = session
        self._watch = watch
        self._boot_id = boot_id

    def note_made(self, entry: Entry) -> Entry:
        """The entry, whose instances were just made or found to be its own, as it is to be kept."""
        return replace(entry, marked=self._watch.begin(entry))

    def own_instance(self, entry: Entry) -> GpuInstance | None:
        """The GPU instance that this entry made, if it is there and known to be no other's."""
        return self.find_own_instance(entry).own

    def is_whole(self, entry: Entry) -> bool:
        """True if an entry's slice is there: both instances, and the same UUID."""
        is_recorded = entry.ci_id is not None and bool(entry.mig_uuid)
        return is_recorded and self.find_own_instance(entry).whole

    def find_own_instance(
        self, entry: Entry, *, has_no_compute_instance: bool = False
    ) -> FoundInstance:
        """Look for the GPU instance that this entry made.

        ``has_no_compute_instance``: this process has destroyed the compute instance of the entry
        and could not record that.
        """
        if entry.boot_id != self._boot_id or entry.placement is None or entry.profile_id is None:
            return FoundInstance()
        return self._session.as_one(
            lambda: self._found(entry, has_no_compute_instance=has_no_compute_instance),
            gpu=entry.gpu,
        )

    def _found(self, entry: Entry, *, has_no_compute_instance: bool) -> FoundInstance:
        try:
            found = self._candidate(entry)
            if found is None:
                return FoundInstance()
            why, inside = self._judge(entry, found, has_no_compute_instance=has_no_compute_instance)
        except NotSupportedError:
            mode = mig_mode(self._session, self._session.device(entry.gpu), gpu=entry.gpu)
            # A GPU on which a slice was made has MIG, whatever it says now.
            if mode is None or mode[0]:
                raise
            return FoundInstance()  # without MIG mode there are no instances
        if why is None:
            return FoundInstance(found, whole=entry.mig_uuid in {c.uuid for c in inside})
        contents = ", ".join(c.uuid for c in inside) or "no compute instance"
        return FoundInstance(
            other=f"GPU instance {found.id} of GPU {entry.gpu} (with {contents}) lies where "
            f"{entry.device} of claim {entry.claim} was made"
            f"{' with ' + entry.mig_uuid if entry.mig_uuid else ''}, but {why.value}",
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
        for gpu in {e.gpu for e in found.values()}:
            self._watch.mark_gpu(gpu, found.values())
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
            why, _ = self._judge(entry, gi, has_no_compute_instance=False)
        except InstanceNotFoundError:
            return True  # destroyed by someone else since it was listed
        return why is not None

    def _judge(
        self, entry: Entry, gi: GpuInstance, *, has_no_compute_instance: bool
    ) -> tuple[Doubt | None, tuple[ComputeInstance, ...]]:
        gpu_instance, compute_instance = self._watch.tell(entry)
        # Before the UUID is read: what is held from now on is then what was read.
        opened = self._watch.hold(entry)
        inside = list_compute_instances(self._session, entry.gpu, gi.id)
        kind = _inside(entry, inside)
        nameless = kind is Inside.STRANGE and not entry.mig_uuid
        known = Evidence(
            entry.state,
            kind,
            has_gi_id=entry.gi_id is not None,
            has_ci_id=entry.ci_id is not None,
            has_uuid=bool(entry.mig_uuid),
            gpu_instance=gpu_instance,
            compute_instance=compute_instance,
            unique=is_unique(entry.mig_uuid),
            has_no_compute_instance=has_no_compute_instance,
            busy=nameless and self._is_busy(entry, gi),
            blind=not self._session.names_processes,
        )
        why = doubt(known)
        if opened and why is None:
            self._watch.mark(entry)
        elif opened:
            self._watch.end(entry.key)
        return why, inside

    def _is_busy(self, entry: Entry, gi: GpuInstance) -> bool:
        try:
            return bool(processes(self._session, entry.gpu, gi.id))
        except NotSupportedError:
            return False


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


def _inside(entry: Entry, inside: Collection[ComputeInstance]) -> Inside:
    if not inside:
        return Inside.NONE
    if entry.mig_uuid and entry.mig_uuid in {c.uuid for c in inside}:
        return Inside.RECORDED
    return Inside.STRANGE if len(inside) == 1 else Inside.SEVERAL
