"""Decisions read from reservations: what the leader before had decided and not written. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dra.allocator.problem import Decision, Pick
from dra.gpu.inventory import ClaimRef, Inventory, Reservation, ReservedDevice
from dra.gpu.names import DeviceNameError, MigDevice, parse_device


def decision_of(reservations: Iterable[Reservation], inventory: Inventory) -> Decision | None:
    """The decision that was reserved on a node; None if the node's GPUs are others by now."""
    picks = [_pick(r.claim, d, inventory) for r in reservations for d in r.devices]
    known = tuple(p for p in picks if p is not None)
    return Decision(inventory.node, inventory.pool, known) if len(known) == len(picks) else None


def _pick(claim: ClaimRef, device: ReservedDevice, inventory: Inventory) -> Pick | None:
    try:
        parsed = parse_device(device.device)
    except DeviceNameError:
        return None
    if not isinstance(parsed, MigDevice):
        return None
    gpu = inventory.gpu(parsed.gpu)
    if gpu is None or gpu.geometry is None or gpu.uuid != device.gpu:
        return None
    profile = gpu.geometry.by_id(parsed.profile_id)
    placements = profile.placements if profile is not None else ()
    placement = next((p for p in placements if p.start == parsed.start), None)
    if profile is None or placement is None:
        return None
    return Pick(claim, device.request, gpu.name, device.device, profile.name, placement)
