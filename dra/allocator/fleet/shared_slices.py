"""Slices that claims of shares have: what is given of each, and which more claims may join. Pure.

A slice is shared, or one claim has it: never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dra.gpu.geometry import Occupant, Placement
from dra.gpu.holdings import Device, occupant_of
from dra.gpu.inventory import Gpu, Instance, InstanceState
from dra.gpu.names import GpuDevice, MigDevice
from dra.gpu.shares import Share, SharesHeld, sum_of

SharesGiven = Mapping[tuple[str, MigDevice], Share]
"""Shares of slices by the UID of their claim and the device that its allocation names."""

_IN_USE = (InstanceState.PREPARING, InstanceState.PREPARED)


@dataclass(frozen=True, slots=True, order=True)
class SharedSlice:
    """A slice that shares alone are given of; ``held`` is their sum."""

    placement: Placement
    profile_id: int
    held: SharesHeld


def joinable(
    gpu: Gpu, claims: Iterable[tuple[str, Device]], given: SharesGiven
) -> tuple[SharedSlice, ...]:
    """The shared slices of ``gpu`` that one more claim may join if it has room, in their order.

    ``claims`` are all that are allocated on it, by UID and device, ``given`` the shares among them.
    """
    shares: dict[Occupant, dict[str, Share]] = {}
    for (uid, device), share in given.items():
        occupant = occupant_of(device, gpu.geometry)
        if occupant is not None and occupant.profile_id is not None:
            shares.setdefault(occupant, {})[uid] = share
    alone = [occupant_of(device, gpu.geometry) for _, device in claims if not _is_part(device)]
    masks = [None if o is None else o.placement.mask for o in (*alone, *shares)]
    return tuple(
        sorted(
            SharedSlice(o.placement, o.profile_id, sum_of(sharers.values()))
            for o, sharers in shares.items()
            if o.profile_id is not None
            and sum(m is None or bool(m & o.placement.mask) for m in masks) == 1
            and _is_sound(gpu.instances, o.placement, sharers)
        )
    )


def _is_part(device: Device) -> bool:
    return not isinstance(device, GpuDevice) and device.shared


def _is_sound(
    instances: Iterable[Instance], placement: Placement, sharers: Mapping[str, Share]
) -> bool:
    """True unless what lies at ``placement`` is about to go, is broken, or somebody else's.

    The instance of a claim that has ended is left out where that of a sharer is there too: it is
    the same one, which stays.
    """
    here = [i for i in instances if i.placement.overlaps(placement)]
    own = [i for i in here if i.claim is not None and i.claim.uid in sharers]
    ended = [i for i in here if i not in own]
    if not own:
        return not ended
    return all(i.state in _IN_USE and not i.unhealthy for i in own) and all(
        i.claim is not None and i.placement == placement for i in ended
    )
