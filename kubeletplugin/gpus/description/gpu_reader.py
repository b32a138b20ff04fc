"""Reader of one GPU's state: what is on it becomes what is published of it.

What is published comes from the last look at each GPU, so that a GPU that hangs holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.description.gpu_description import describe
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.ownership.identity import Identity
from kubeletplugin.journal.entries import Entry, EntryKey, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.condition import Condition, read_condition
from kubeletplugin.nvml.errors import DriverUnavailableError, GpuLostError, NvmlError
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)
_WHOLE = frozenset({State.CI_CREATED, State.PREPARED})


_Found = tuple[tuple[GpuInstance, ...], Mapping[int, Entry]]
"""Instances on a GPU, and the entries of those that have one, by the instance's id."""


class GpuReader:
    """Looks at GPUs; ``on_change`` is called when what is to be published of one has changed.

    It is called with the GPU's lock held, unless the GPU is released or hangs.
    """

    def __init__(
        self,
        session: Session,
        journal: Journal,
        identity: Identity,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._journal = journal
        self._identity = identity
        self._on_change = on_change
        self._last: dict[str, _Found] = {}

    def poll(self, unit: GpuUnit) -> bool:
        """Look at a GPU unless somebody works on it; False if NVML describes it otherwise by now.

        Raises:
            DriverUnavailableError: the driver is gone.
        """
        if unit.known.released:
            return True
        if not unit.lock.try_enter():
            # Whoever works on it looks when done, which may be never.
            if hangs := self._session.hangs(unit.uuid):
                self._show(unit, (), {}, failure=(GpuReason.NVML_HANG, hangs))
            return True
        current = True
        try:
            current = self._is_current(unit)
            self.read(unit)
        except DriverUnavailableError:
            raise
        except NvmlError as error:
            self._show_failure(unit, error)
        finally:
            unit.lock.leave()
        return current

    def observe(self, unit: GpuUnit) -> None:
        """Look at a GPU again, after a change; the caller holds its lock. Never raises."""
        if unit.known.released:
            return
        try:
            self.read(unit)
        except NvmlError as error:
            self._show_failure(unit, error)

    def read(self, unit: GpuUnit) -> None:
        """Look at a GPU; the caller holds its lock.

        Raises:
            NvmlError: it cannot be looked at; what was published of it stays.
        """
        gpu, entries = unit.known, self._journal.of_gpu(unit.uuid)
        present, owners = self._last[unit.uuid] = self._instances(unit, entries)
        if gpu.away or not gpu.card.mig_enabled:
            slices = (e for e in entries if e.state is State.PREPARED and e.placement is not None)
            unit.come_back(() if present else (e.key for e in slices))
        self._show(unit, present, owners)

    def follow(self, unit: GpuUnit, read_back: Collection[EntryKey]) -> bool:
        """Publish what this program did to a GPU; the caller holds its lock.

        ``read_back`` are keys of entries whose slices were made, or are gone, since the last look,
        and NVML has said so. False if that does not tell all, so that it takes a look.
        """
        known, last = unit.known, self._last.get(unit.uuid)
        if last is None or known.released or known.away or not known.card.mig_enabled:
            return False
        entries = self._journal.of_gpu(unit.uuid)
        found = followed(*last, entries, read_back)
        if found is None:
            return False
        self._last[unit.uuid] = found
        self._show(unit, *found)
        return True

    def show_again(self, unit: GpuUnit) -> None:
        """Publish what was seen last as it counts by now; the caller holds the GPU's lock.

        No GPU is asked. Of one that could not be looked at it still counts that it could not.
        """
        if last := self._last.get(unit.uuid):
            self._show(unit, *last)

    def _instances(self, unit: GpuUnit, entries: Collection[Entry]) -> _Found:
        geometry = unit.known.card.geometry
        if geometry is None:
            return (), {}

        def found() -> _Found:
            present = list_gpu_instances(self._session, unit.uuid, geometry)
            return present, self._identity.owners(present, entries)

        return self._session.as_one(found, gpu=unit.uuid)

    def show_released(self, unit: GpuUnit) -> None:
        """Publish that a GPU is released."""
        self._show(unit, (), {}, failure=(GpuReason.RELEASED, unit.known.released))

    def _is_current(self, unit: GpuUnit) -> bool:
        known = unit.known
        card = known.card
        mode, condition = self._session.as_one(
            lambda: self._modes(unit.uuid, card.condition), gpu=unit.uuid
        )
        if card.reason == GpuReason.NVML_ERROR or (
            known.seen and known.seen.reason == GpuReason.GPU_LOST
        ):
            return False  # a GPU that is back may have another minor number
        modes = (card.mig_enabled, card.mig_pending)
        return (mode or (False, False)) == modes and condition == card.condition

    def _modes(self, gpu: str, before: Condition) -> tuple[tuple[bool, bool] | None, Condition]:
        device = self._session.device(gpu)
        mode = mig_mode(self._session, device, gpu=gpu)
        return mode, read_condition(self._session, device, gpu=gpu, before=before)

    def _show_failure(self, unit: GpuUnit, error: NvmlError) -> None:
        hangs = self._session.hangs(unit.uuid)
        if isinstance(error, GpuLostError):
            unit.leave()
        reason = GpuReason.GPU_LOST if isinstance(error, GpuLostError) else GpuReason.NVML_ERROR
        self._show(
            unit, (), {}, failure=(GpuReason.NVML_HANG, hangs) if hangs else (reason, str(error))
        )

    def _show(
        self,
        unit: GpuUnit,
        present: tuple[GpuInstance, ...],
        owners: Mapping[int, Entry],
        *,
        failure: tuple[str, str] = ("", ""),
    ) -> None:
        if failure[0]:
            self._last.pop(unit.uuid, None)
        entries = self._journal.of_gpu(unit.uuid)
        gpu = describe(unit.known, present, entries, owners=owners, failure=failure)
        before = unit.show(gpu)
        if gpu == before:
            return
        if failure[0] not in {"", GpuReason.RELEASED} and (
            before is None or before.unavailable != gpu.unavailable
        ):
            _log.error("%s: %s", unit.name, gpu.unavailable)
        self._on_change()


def followed(
    present: Iterable[GpuInstance],
    owners: Mapping[int, Entry],
    entries: Collection[Entry],
    read_back: Collection[EntryKey],
) -> _Found | None:
    """Instances on a GPU and their owners, from those of the last look and the entries since.

    None unless each entry has a whole slice of its own, which was seen or read back.
    """
    if not all(map(_has_whole_slice, entries)):
        return None
    seen = {e.key: (gi_id, e.mig_uuid) for gi_id, e in owners.items()}
    fresh = [e for e in entries if seen.get(e.key) != (e.gi_id, e.mig_uuid)]
    gone = seen.keys() - {e.key for e in entries} | {e.key for e in fresh if e.key in seen}
    if not {e.key for e in fresh} | gone <= set(read_back):
        return None
    left = [gi for gi in present if gi.id not in owners or owners[gi.id].key not in gone]
    if {gi.id for gi in left} & {e.gi_id for e in fresh}:
        return None  # an id that somebody else's instance had
    made = [
        GpuInstance(e.gi_id, e.profile_id, e.placement)
        for e in fresh
        if e.gi_id is not None and e.profile_id is not None and e.placement is not None
    ]
    by_place = sorted([*left, *made], key=lambda gi: (gi.placement, gi.id))
    return tuple(by_place), {e.gi_id: e for e in entries if e.gi_id is not None}


def _has_whole_slice(entry: Entry) -> bool:
    """True if an entry alone has a slice that is as it was made."""
    own = entry.placement is not None and entry.share is None
    made = entry.gi_id is not None and entry.ci_id is not None
    return own and made and entry.state in _WHOLE and not entry.quarantined
