"""Description of a GPU for publishing, joined with the instances on it and their holders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields

from dra.gpu.geometry import Geometry
from dra.gpu.inventory import Gpu, GpuFacts, GpuLayout, IdleInstance, Instance, InstanceState
from dra.gpu.reasons import GpuReason
from dra.gpu.shares import ShareOffer
from kubeletplugin.gpus.known_gpu import KnownGpu
from kubeletplugin.journal.entries import LEAVING, Entry, State, share_slice
from kubeletplugin.nvml.condition import health
from kubeletplugin.nvml.instances import GpuInstance

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


def describe(
    known: KnownGpu,
    present: Iterable[GpuInstance],
    entries: Collection[Entry],
    *,
    owners: Mapping[int, Entry],
    failure: tuple[str, str] = ("", ""),
) -> Gpu:
    """The GPU with its instances.

    ``present`` is what is on the hardware, ``entries`` the journal's, ``owners`` those whose
    instance is there, by its id; of several that share one, the first. ``failure`` says in a word
    and in words why it could not be looked at, and is empty when it could.
    """
    card = known.card
    reason, problem = _availability(known, failure)
    return Gpu(
        minor=known.number,
        uuid=card.uuid,
        pcie_root=known.pcie_root,
        multiprocessors=max((p.multiprocessors for p in card.geometry.profiles), default=0)
        if card.geometry
        else 0,
        mig_enabled=card.mig_enabled,
        mig_pending=card.mig_pending,
        geometry=known.geometry,
        instances=_instances(
            present,
            entries,
            card.geometry,
            owners=owners,
            looked=not failure[0] and card.reason != GpuReason.NVML_ERROR,
        ),
        idle=tuple(
            IdleInstance(e.placement, e.claim.namespace, e.profile_id)
            for e in owners.values()
            if e.idle and not e.ready and e.placement is not None
        ),
        layout=_layout(known, owners.values()),
        unavailable=problem,
        reason=reason,
        sharing=_sharing(known, entries),
        slice_sharing=known.slice_sharing if card.mig_enabled else None,
        **{f.name: getattr(card, f.name) for f in fields(GpuFacts)},
        health=health(card.condition, mig=card.mig_enabled, open_in=known.open_in),
    )


def _layout(known: KnownGpu, owners: Iterable[Entry]) -> GpuLayout | None:
    if known.layout is None or not known.layout.slices:
        return None
    ready = (e.placement for e in owners if e.ready and e.placement is not None)
    return GpuLayout(known.layout.name, tuple(sorted(ready)))


def _sharing(known: KnownGpu, entries: Collection[Entry]) -> ShareOffer | None:
    """Offer to several claims; None while one has the GPU alone, which it may have had before."""
    alone = any(e.placement is None and e.share is None for e in entries)
    return None if alone or known.card.mig_enabled else known.sharing


def _instances(
    present: Iterable[GpuInstance],
    entries: Iterable[Entry],
    geometry: Geometry | None,
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
        profile = geometry.by_id(gi.profile_id) if geometry else None
        instances.append(
            Instance(
                gi.placement,
                InstanceState.FOREIGN,
                profile_id=gi.profile_id,
                profile=profile.name if profile else "",
                gpu_instance_id=gi.id,
            )
        )
    # Of a GPU that could not be looked at, what the journal says is the best that is known.
    states = _ABSENT if looked else _PRESENT
    instances += [_held(e, states.get(e.state, InstanceState.PREPARING)) for e in absent.values()]
    return tuple(sorted(instances, key=lambda i: i.placement))


def _present(entry: Entry) -> InstanceState:
    whole = entry.early and entry.ci_id is not None
    # As it will be called once kubelet has asked for it: nothing is written then.
    otherwise = InstanceState.PREPARED if whole else InstanceState.PREPARING
    return _PRESENT.get(entry.state, otherwise)


def _sharers(entry: Entry, others: Iterable[Entry]) -> list[Entry]:
    """The others that have the very instances of ``entry``."""
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
        message=entry.quarantined or entry.note,
    )


def _availability(known: KnownGpu, failure: tuple[str, str]) -> tuple[str, str]:
    """A word for programs and words for people; without MIG a GPU can still be used whole."""
    card = known.card
    if failure[0]:
        return failure
    if (problem := known.problem)[0]:
        return problem
    if known.conflict is not None:
        return known.conflict.reason, known.conflict.problem
    if known.layout is not None and known.layout.waits:
        failed = known.layout.failed
        return GpuReason.LAYOUT_FAILED if failed else GpuReason.LAYOUT_PENDING, known.layout.waits
    if not card.mig_enabled:
        return (GpuReason.MIG_OFF if card.mig_capable else GpuReason.NO_MIG), ""
    reported, offered = card.geometry, known.geometry
    refused = reported and reported.profiles and not (offered and offered.profiles)
    return (GpuReason.CREATION_FAILED, _ALL_REFUSED) if refused else ("", "")
