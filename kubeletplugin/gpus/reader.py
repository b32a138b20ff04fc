"""Reader of a GPU's state: joins its instances with the journal's entries, and publishes both.

The last look at each GPU is published, so that a GPU that hangs holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields

from msgspec import structs

from dra.gpu.inventory import (
    HARMFUL,
    Gpu,
    GpuFacts,
    GpuHealth,
    GpuLayout,
    GpuReason,
    IdleInstance,
    Instance,
    InstanceState,
)
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.identity import Identity
from kubeletplugin.journal.entries import LEAVING, Entry, EntryKey, State, share_slice
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.condition import Condition, health, read_condition
from kubeletplugin.nvml.errors import DriverUnavailableError, GpuLostError, NvmlError
from kubeletplugin.nvml.gpus import mig_mode
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)
_WHOLE = frozenset({State.CI_CREATED, State.PREPARED})
_LEAVING = dict.fromkeys(LEAVING, InstanceState.RECLAIMING) | {State.ORPHAN: InstanceState.ORPHAN}
_PRESENT = _LEAVING | {
    State.PREPARED: InstanceState.PREPARED,
    State.LOST: InstanceState.LOST,
}
_ABSENT = _PRESENT | {State.PREPARED: InstanceState.LOST}
_ALL_REFUSED = (
    "the driver refused a slice of each of its profiles lately; each is offered again after a "
    "pause that grows while it is refused; see dmesg on the node, and reset the GPU if that goes on"
)
_Found = tuple[tuple[GpuInstance, ...], Mapping[int, Entry]]
"""Instances on a GPU; and by instance id, the entries of the instances that have one."""


class GpuReader:
    """Looks at GPUs.

    ``on_change``: called when the published state of a GPU has changed; the GPU's lock is held
    then, unless the GPU is released or hangs.
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

    def poll(self, unit: GpuUnit) -> bool | None:
        """Look at a GPU that nobody works on.

        Returns True if the GPU's description still holds, or no more can be learned now; False if
        NVML describes the GPU otherwise by now; None if somebody works on it.

        Raises:
            DriverUnavailableError: the driver is gone.
        """
        if unit.released:
            return True
        current = True
        with unit.lock.if_free() as free:
            if not free:
                # Whoever works on it looks when done, which may be never.
                hangs = self._session.hangs(unit.uuid)
                if hangs:
                    self._show(unit, (), {}, failure=(GpuReason.NVML_HANG, hangs))
                return True if hangs else None
            try:
                current = self._is_current(unit)
                self.read(unit)
            except DriverUnavailableError:
                raise
            except NvmlError as error:
                self._show_failure(unit, error)
        return current

    def observe(self, unit: GpuUnit) -> None:
        """Look at a GPU again after a change; the caller holds its lock. Raises no NvmlError."""
        if unit.released:
            return
        try:
            self.read(unit)
        except NvmlError as error:
            self._show_failure(unit, error)

    def read(self, unit: GpuUnit) -> None:
        """Look at a GPU; the caller holds its lock.

        Raises:
            NvmlError: the GPU cannot be looked at; its published state stays.
        """
        entries, geometry = self._journal.of_gpu(unit.uuid), unit.card.geometry

        def look() -> _Found:
            if geometry is None:
                return (), {}
            present = list_gpu_instances(self._session, unit.uuid, geometry)
            return present, self._identity.owners(present, entries)

        found = look() if geometry is None else self._session.as_one(look, gpu=unit.uuid)
        present, owners = self._last[unit.uuid] = found
        if unit.away or not unit.card.mig_enabled:
            slices = (e for e in entries if e.state is State.PREPARED and e.placement is not None)
            unit.come_back(() if present else (e.key for e in slices))
        self._show(unit, present, owners)

    def follow(self, unit: GpuUnit, read_back: Collection[EntryKey]) -> bool:
        """Publish, without asking NVML, what this program did to a GPU; the caller holds its lock.

        ``read_back``: keys of the entries whose slices were made or removed since the last look,
        and NVML has confirmed that. Returns False if these do not explain every change in the
        journal, so that the GPU must be looked at.
        """
        last = self._last.get(unit.uuid)
        if last is None or unit.released or unit.away or not unit.card.mig_enabled:
            return False
        found = followed(*last, self._journal.of_gpu(unit.uuid), read_back)
        if found is None:
            return False
        self._last[unit.uuid] = found
        self._show(unit, *found)
        return True

    def show_again(self, unit: GpuUnit) -> None:
        """Publish the last look once more, with what else changed since; the caller holds the lock.

        No GPU is asked. Does nothing for a GPU that could not be looked at.
        """
        if last := self._last.get(unit.uuid):
            self._show(unit, *last)

    def show_released(self, unit: GpuUnit) -> None:
        """Publish that a GPU is released."""
        self._show(unit, (), {}, failure=(GpuReason.RELEASED, unit.released))

    def _is_current(self, unit: GpuUnit) -> bool:
        card = unit.card

        def ask() -> tuple[tuple[bool, bool] | None, Condition]:
            session, gpu = self._session, unit.uuid
            device = session.device(gpu)
            mode = mig_mode(session, gpu)
            return mode, read_condition(session, device, gpu=gpu, before=card.condition)

        mode, condition = self._session.as_one(ask, gpu=unit.uuid)
        seen = unit.seen
        was_lost = seen is not None and seen.reason == GpuReason.GPU_LOST
        if card.silent or card.reason == GpuReason.NVML_ERROR or was_lost:
            return False  # a GPU that is back may have another minor number
        modes = (card.mig_enabled, card.mig_pending)
        return (mode or (False, False)) == modes and condition == card.condition

    def _show_failure(self, unit: GpuUnit, error: NvmlError) -> None:
        reason, words = GpuReason.NVML_ERROR, str(error)
        if isinstance(error, GpuLostError):
            unit.away = True
            reason = GpuReason.GPU_LOST
        if hangs := self._session.hangs(unit.uuid):
            reason, words = GpuReason.NVML_HANG, hangs
        self._show(unit, (), {}, failure=(reason, words))

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
        gpu = describe(unit, present, entries, owners=owners, failure=failure)
        before, unit.seen = unit.seen, gpu
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
    """Derive a GPU's instances and their owners from the last look and the present ``entries``.

    ``present`` and ``owners`` are of the last look; ``read_back`` as for :meth:`GpuReader.follow`.
    Returns None unless each entry has a whole slice of its own, which was seen or read back.
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
    """True if an entry has a slice for itself, with both instances recorded, not being removed."""
    own = entry.placement is not None and entry.share is None
    made = entry.gi_id is not None and entry.ci_id is not None
    return own and made and entry.state in _WHOLE


def describe(
    unit: GpuUnit,
    present: Iterable[GpuInstance],
    entries: Collection[Entry],
    *,
    owners: Mapping[int, Entry],
    failure: tuple[str, str] = ("", ""),
) -> Gpu:
    """The GPU with its instances, as it is published.

    ``present``: GPU instances that are on the hardware. ``entries``: the journal's of this GPU.
    ``owners``: by instance id, the entry whose instance is there; the first of several that share
    it. ``failure``: reason and text why the GPU could not be looked at; both empty when it could.
    """
    card, layout = unit.card, unit.layout
    profiles = card.geometry.profiles if card.geometry else ()
    reason, problem = _availability(unit, failure)
    looked = not failure[0] and card.reason != GpuReason.NVML_ERROR
    # One claim that has the GPU alone may have had it before it was offered to several.
    alone = any(e.placement is None and e.share is None for e in entries)
    ready = [e.placement for e in owners.values() if e.ready and e.placement is not None]
    return Gpu(
        minor=unit.number,
        uuid=card.uuid,
        pcie_root=unit.pcie_root,
        multiprocessors=max((p.multiprocessors for p in profiles), default=0),
        mig_enabled=card.mig_enabled,
        mig_pending=card.mig_pending,
        geometry=unit.geometry,
        claims=tuple(dict.fromkeys(e.claim for e in entries if e.placement is None and not e.view)),
        instances=_instances(unit, present, entries, owners=owners, looked=looked),
        idle=tuple(
            IdleInstance(e.placement, e.claim.namespace, e.profile_id)
            for e in owners.values()
            if e.idle and not e.ready and e.placement is not None
        ),
        layout=GpuLayout(layout.name, tuple(sorted(ready))) if layout and layout.slices else None,
        unavailable=problem,
        reason=reason,
        shares=0 if alone or card.mig_enabled else unit.shares,
        slice_shares=unit.slice_shares if card.mig_enabled else 0,
        **{f.name: getattr(card, f.name) for f in fields(GpuFacts)},
        health=_health(unit, failure[0]),
    )


def _health(unit: GpuUnit, failure: str) -> GpuHealth | None:
    """The driver's word; of a GPU that is released for ``failure``, what harmed it until then."""
    card = unit.card
    found = health(card.condition, mig=card.mig_enabled, open_in=unit.open_in)
    harm = unit.seen.reason if unit.seen is not None else ""
    if unit.unhealthy and not harm:
        harm = GpuReason.XID_ERROR
    if failure != GpuReason.RELEASED or harm not in HARMFUL:
        return found
    return structs.replace(found or GpuHealth(), notes=(f"{harm} when it was released",))


def _instances(
    unit: GpuUnit,
    present: Iterable[GpuInstance],
    entries: Iterable[Entry],
    *,
    owners: Mapping[int, Entry],
    looked: bool,
) -> tuple[Instance, ...]:
    absent = {e.key: e for e in entries if e.placement is not None and not e.idle}
    instances: list[Instance] = []
    for gi in present:
        entry = owners.get(gi.id)
        if entry is not None and entry.idle:
            continue  # its room is free for whoever needs it
        if entry is not None and absent.pop(entry.key, None) is not None:
            sharers = [] if entry.share is None else _sharers(entry, absent.values())
            for sharer in sharers:
                del absent[sharer.key]
            instances += [_held(e, _present(e)) for e in (entry, *sharers)]
            continue
        geometry, (uuid, users) = unit.card.geometry, unit.foreign.get(gi.id, ("", ""))
        profile = geometry.by_id(gi.profile_id) if geometry else None
        instances.append(
            Instance(
                gi.placement,
                InstanceState.FOREIGN,
                profile_id=gi.profile_id,
                profile=profile.name if profile else "",
                gpu_instance_id=gi.id,
                uuid=uuid,
                message=users,
            )
        )
    # Of a GPU that could not be looked at, what the journal says is the best that is known.
    states = _ABSENT if looked else _PRESENT
    instances += [_held(e, states.get(e.state, InstanceState.PREPARING)) for e in absent.values()]
    return tuple(sorted(instances, key=lambda i: i.placement))


def _present(entry: Entry) -> InstanceState:
    whole = entry.early and entry.ci_id is not None
    # A slice made ahead of kubelet counts as prepared: kubelet's request writes no new state.
    otherwise = InstanceState.PREPARED if whole else InstanceState.PREPARING
    return _PRESENT.get(entry.state, otherwise)


def _sharers(entry: Entry, others: Iterable[Entry]) -> list[Entry]:
    """Those of ``others`` that have the same GPU instance and MIG device as ``entry``."""
    ids = (entry.gi_id, entry.mig_uuid)
    return [e for e in others if share_slice(entry, e) and (e.gi_id, e.mig_uuid) == ids]


def _held(entry: Entry, state: InstanceState) -> Instance:
    if entry.placement is None:
        raise ValueError(f"{entry.device} is no slice")
    return Instance(
        entry.placement,
        state,
        profile_id=entry.profile_id,
        profile=entry.profile,
        gpu_instance_id=entry.gi_id,
        compute_instance_id=entry.ci_id,
        uuid=entry.mig_uuid,
        claim=None if entry.suspect else entry.claim,
        message=entry.note,
    )


def _availability(unit: GpuUnit, failure: tuple[str, str]) -> tuple[str, str]:
    """Reason and text why nothing, or no slice, is given out here; both empty if all is well.

    Without MIG mode there is a reason and no text, as the GPU can still be used whole.
    """
    card, conflict, layout = unit.card, unit.conflict, unit.layout
    for found in (failure, unit.problem):
        if found[0]:
            return found
    if conflict is not None:
        return conflict.reason, conflict.problem
    if layout is not None and layout.waits:
        failed = layout.failed
        return GpuReason.LAYOUT_FAILED if failed else GpuReason.LAYOUT_PENDING, layout.waits
    if not card.mig_enabled:
        return (GpuReason.MIG_OFF if card.mig_capable else GpuReason.NO_MIG), ""
    reported, offered = card.geometry, unit.geometry
    refused = reported and reported.profiles and not (offered and offered.profiles)
    return (GpuReason.CREATION_FAILED, _ALL_REFUSED) if refused else ("", "")
