"""Journal entries from the devices that were allocated to a claim, and checks of availability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dra.claims.allocation import AllocatedDevice
from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DeviceNameError, GpuDevice, MigDevice, parse_device, profile_label
from dra.gpu.names import gpu_name as name_of_gpu
from dra.gpu.shares import Share, share_of, sum_of, why_full
from kubeletplugin.errors import BusyError, DeviceError, ModeError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import ARRIVING, LEAVING, Entry, MpsLimits, State
from kubeletplugin.nvml.errors import enable_mig


def intent(
    device: AllocatedDevice,
    claim: ClaimRef,
    hardware: Hardware,
    *,
    total: int = 1,
    is_there: bool = False,
) -> tuple[GpuUnit, Entry]:
    """The GPU of an allocated device, and a new journal entry for the device in state ``intent``.

    ``total``: number of devices that the claim has on this node. ``is_there``: the device is made
    already; then it may be a share even if the node no longer offers shares.

    Raises:
        DeviceError: the name cannot be parsed, or this node does not have or offer the device.
    """
    try:
        parsed = parse_device(device.device)
    except DeviceNameError as error:
        raise DeviceError(f"{error}; the claim must be allocated by this driver") from error
    unit = hardware.named(name_of_gpu(parsed.minor))
    entry = Entry(
        claim=claim,
        device=device.device,
        state=State.INTENT,
        gpu=unit.uuid,
        boot_id=hardware.boot_id,
        pool=device.pool,
        requests=(device.base_request,),
        total=total,
    )
    if isinstance(parsed, GpuDevice) and device.admin_access:
        return unit, replace(entry, view=True)
    if isinstance(parsed, GpuDevice):
        entry = replace(entry, interval=device.sharing.interval)
        share = _share_of_gpu(device, unit, is_there=is_there)
    else:
        profile, placement = _slice(parsed, unit)
        entry = replace(entry, profile_id=profile.id, profile=profile.name, placement=placement)
        share = _share_of_slice(device, parsed, unit, profile, is_there=is_there)
    if share is not None and not share.tenant:  # its class does not say tenants: any
        share = replace(share, tenant=claim.namespace)
    return unit, replace(
        entry, share=share, share_id=device.share_id, mps=mps_limits(device, share)
    )


def _share_of_gpu(device: AllocatedDevice, gpu: GpuUnit, *, is_there: bool) -> Share | None:
    """Share of a whole GPU; None if the claim has the GPU alone.

    Raises:
        DeviceError: the GPU cannot be used whole, or is not shared.
    """
    if gpu.card.mig_enabled:
        raise DeviceError(
            f"{gpu} is in MIG mode and cannot be used whole; ask for its largest profile instead"
        )
    if unwell := gpu.unwell:
        raise DeviceError(f"{gpu} cannot be used: {unwell}")
    is_part = bool(device.share_id) or device.ask.stated
    # 1 where the node shares it no more: a share without amounts counts as all.
    shares = gpu.shares or int(is_there and is_part)
    if shares:
        return share_of(device.ask, shares, gpu.card.memory_mib, namespace="")
    if is_part:
        raise DeviceError(
            f"{gpu} is not shared, and the claim was given a part of it; have the node share its "
            "GPUs again, or delete the pod"
        )
    return None


def _slice(parsed: MigDevice, unit: GpuUnit) -> tuple[Profile, Placement]:
    check_mig(unit)
    geometry, layout = unit.geometry, unit.layout
    profiles = geometry.profiles if geometry else ()
    profile = next((p for p in profiles if p.id == parsed.profile_id), None)
    if profile is None or profile_label(profile.name) != parsed.profile_label:
        offered = ", ".join(f"{p.name} ({profile_label(p.name)}-{p.id})" for p in profiles)
        why = unit.struck(parsed.profile_id)
        raise DeviceError(
            f"{unit.name} has no profile {parsed.profile_label}-{parsed.profile_id}"
            f"{' now: ' if why else ''}{why}; it has: {offered or 'none'}",
            passing=bool(why) and unit.refused_once(parsed.profile_id),
        )
    placement = next((p for p in profile.placements if p.start == parsed.start), None)
    if placement is None:
        starts = ", ".join(str(p.start) for p in profile.placements) or "none"
        why = f" (its layout is {layout.name})" if layout is not None else ""
        raise DeviceError(
            f"{profile.name} on {unit.name} cannot start at memory slice {parsed.start}; "
            f"it can at: {starts}{why}"
        )
    return profile, placement


def _share_of_slice(
    device: AllocatedDevice, parsed: MigDevice, unit: GpuUnit, profile: Profile, *, is_there: bool
) -> Share | None:
    if not parsed.shared:
        return None
    shares = unit.slice_shares or int(is_there)
    if not shares:
        raise DeviceError(
            f"slices of {unit} are not shared, and the claim was given a part of one; have "
            "the node share its slices again (sliceShares of its class), or delete the pod"
        )
    return share_of(device.ask, shares, profile.memory_mib, namespace="")


def mps_limits(device: AllocatedDevice, share: Share | None) -> MpsLimits | None:
    """Limits of the device's MPS clients; None if the device is not shared by MPS.

    A configured limit above the ``share`` is lowered to the share.
    """
    mps = device.sharing.mps
    if not device.sharing.by_mps:
        return None
    threads = mps.active_thread_percentage if mps.limits_threads else None
    if share is None:
        return MpsLimits(threads, mps.memory_mebibytes)
    return MpsLimits(
        _least(threads, share.cores or None), _least(mps.memory_mebibytes, share.memory_mib)
    )


def _least(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def shape_of(unit: GpuUnit, entry: Entry) -> tuple[Profile, Placement]:
    """Profile and placement of an entry, as its GPU offers them now.

    Raises:
        DeviceError: MIG mode is off, or the GPU no longer offers the profile or placement.
        BusyError: the GPU is released, or another program is changing it.
    """
    check_available(unit)
    check_mig(unit)
    profile_id, geometry, layout = entry.profile_id, unit.geometry, unit.layout
    profile = geometry.by_id(profile_id) if geometry and profile_id is not None else None
    if profile is None or entry.placement not in profile.placements:
        struck = "" if profile_id is None else unit.struck(profile_id)
        why = struck or (f"its layout is {layout.name}" if layout is not None else "")
        raise DeviceError(
            f"{unit.name} offers no profile {entry.profile} at {entry.placement}"
            + (f": {why}" if why else ""),
            passing=bool(struck) and unit.refused_once(profile_id or 0),
        )
    return profile, entry.placement


def check_mig(gpu: GpuUnit) -> None:
    """Check that slices can be made on a GPU.

    Raises:
        DeviceError: none can; the message says why, and what to do.
    """
    card = gpu.card
    if unwell := gpu.unwell:
        raise DeviceError(f"{gpu} cannot be used: {unwell}")
    if not card.mig_capable:
        raise DeviceError(f"{gpu.name} ({gpu.uuid}, {card.product_name}) has no MIG")
    if not card.mig_enabled:
        raise mode_is_off(gpu)


def mode_is_off(gpu: GpuUnit) -> ModeError:
    """Error for a GPU whose MIG mode is off; the message says how to turn it on."""
    return ModeError(f"MIG mode of {gpu} is off; {enable_mig(gpu.uuid, gpu=gpu.name)}")


def check_available(gpu: GpuUnit) -> None:
    """Check that the GPU is not released and no other program manages it.

    Raises:
        BusyError: the GPU is released, or the other program will end by itself.
        DeviceError: the other program stays until somebody removes it.
    """
    if gpu.released:
        raise BusyError(f"{gpu} is {gpu.released}")
    conflict = gpu.conflict
    if conflict is None:
        return
    kind = BusyError if conflict.passing else DeviceError
    raise kind(f"{gpu} is unavailable: {conflict.problem}")


def check_room_on_gpu(gpu: GpuUnit, entry: Entry, others: Iterable[Entry]) -> None:
    """Check that a whole GPU has room for ``entry``.

    It has if no other entry (``others``) has the GPU, or if all share it and enough is left. The
    amounts are not checked for an entry that is prepared already.

    Raises:
        BusyError: no room; the message names the holder, or what is left of the GPU.
    """
    shares = []
    for other in others:
        if entry.share is None or other.share is None:
            raise BusyError(
                f"{gpu} is held by claim {other.claim} (UID {other.claim.uid}); it is free once "
                "that claim is unprepared"
            )
        shares.append(other.share)
    if entry.share is None or entry.state not in ARRIVING:
        return
    if not gpu.shares:
        raise BusyError(f"{gpu} is not shared any more, and the claim was given a part of it")
    why = why_full(sum_of(shares), entry.share, gpu.shares, gpu.card.memory_mib)
    if why:
        raise BusyError(f"{gpu} has no room for one more claim: {why}")


def check_room_in_slice(
    unit: GpuUnit, entry: Entry, others: tuple[Entry, ...], *, memory_mib: int
) -> None:
    """Check that ``others``, the entries that share a slice, leave room for ``entry`` on it.

    ``memory_mib``: memory of the slice.

    Raises:
        BusyError: no room; the message says what is left. ``passing`` if one of ``others`` was
            made early or is being removed, so that room may come soon.
    """
    share, shares = entry.share, unit.slice_shares
    where = f"the slice {entry.profile} at {entry.placement} of {unit}"
    if share is None:
        return
    if not shares:
        raise BusyError(
            f"{where} is not shared any more, and the claim was given a part of it; have the node "
            "share its slices again (sliceShares of its class), or delete the pod"
        )
    why = why_full(sum_of(e.share for e in others if e.share), share, shares, memory_mib)
    if why:
        raise BusyError(
            f"{where} has no room for one more claim: {why}; it has once a claim that shares it is "
            "unprepared",
            passing=any(e.early or e.state in LEAVING for e in others),
        )
