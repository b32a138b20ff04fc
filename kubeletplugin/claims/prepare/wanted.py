"""Devices that a claim was given, as this node has them: GPU, profile, placement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dra.claims.allocation import AllocatedDevice
from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import (
    DeviceNameError,
    GpuDevice,
    MigDevice,
    gpu_name,
    parse_device,
    profile_label,
)
from dra.gpu.shares import Share, ShareOffer, share_of
from kubeletplugin.claims.prepare.gpu_checks import check_mig
from kubeletplugin.errors import DeviceError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry, MpsLimits, State

_ONCE_OFFERED = ShareOffer(1)
"""An offer that is no more: a share that does not say how large it is counts as all of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A device that a claim was given here. A whole GPU has neither profile nor placement."""

    device: str
    pool: str
    requests: tuple[str, ...]
    gpu: str
    profile_id: int | None = None
    profile: str = ""
    placement: Placement | None = None
    view: bool = False
    interval: str = ""
    share: Share | None = None
    share_id: str = ""
    mps: MpsLimits | None = None

    def entry(self, claim: ClaimRef, *, boot_id: str, total: int) -> Entry:
        """The record of the intent to make it for ``claim``, which has ``total`` devices here."""
        return Entry(
            claim=claim,
            device=self.device,
            state=State.INTENT,
            gpu=self.gpu,
            boot_id=boot_id,
            pool=self.pool,
            requests=self.requests,
            total=total,
            profile_id=self.profile_id,
            profile=self.profile,
            placement=self.placement,
            view=self.view,
            interval=self.interval,
            share=self._share_of(claim),
            share_id=self.share_id,
            mps=self.mps,
        )

    def _share_of(self, claim: ClaimRef) -> Share | None:
        """Its share, whose tenant is the claim's namespace unless its class says otherwise."""
        if self.share is None or self.share.tenant:
            return self.share
        return replace(self.share, tenant=claim.namespace)


def resolve(
    device: AllocatedDevice, hardware: Hardware, *, is_there: bool = False
) -> tuple[GpuUnit, Wanted]:
    """The GPU, profile and placement that an allocated device's name stands for.

    What ``is_there`` already may be a share where the node offers none any more.

    Raises:
        DeviceError: the name does not parse, or this node has or offers no such thing.
    """
    try:
        parsed = parse_device(device.device)
    except DeviceNameError as error:
        raise DeviceError(f"{error}; the claim must be allocated by this driver") from error
    unit = hardware.named(gpu_name(parsed.minor))
    gpu, requests = unit.known, (device.base_request,)
    if isinstance(parsed, GpuDevice):
        if device.admin_access:
            return unit, Wanted(device.device, device.pool, requests, unit.uuid, view=True)
        if gpu.card.mig_enabled:
            raise DeviceError(
                f"{gpu} is in MIG mode and cannot be used whole; "
                "ask for its largest profile instead"
            )
        if gpu.unwell:
            raise DeviceError(f"{gpu} cannot be used: {gpu.unwell}")
        interval = device.sharing.interval
        share = _share(device, unit, is_there=is_there)
        return unit, Wanted(
            device.device,
            device.pool,
            requests,
            unit.uuid,
            interval=interval,
            share=share,
            share_id=device.share_id,
            mps=mps_limits(device, share),
        )
    return unit, _slice(device, parsed, unit, is_there=is_there)


def _share(device: AllocatedDevice, unit: GpuUnit, *, is_there: bool) -> Share | None:
    """Share of a GPU that several claims may have, still without its namespace."""
    gpu, is_part = unit.known, bool(device.share_id) or device.ask.stated
    offer = gpu.sharing or (_ONCE_OFFERED if is_there and is_part else None)
    if offer is not None:
        return share_of(device.ask, offer, gpu.card.memory_mib, namespace="")
    if is_part:
        raise DeviceError(
            f"{gpu} is not shared, and the claim was given a part of it; have the node share its "
            "GPUs again, or delete the pod"
        )
    return None


def _slice(device: AllocatedDevice, parsed: MigDevice, unit: GpuUnit, *, is_there: bool) -> Wanted:
    gpu = unit.known
    check_mig(gpu)
    profiles = gpu.geometry.profiles if gpu.geometry else ()
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
        why = f" (its layout is {gpu.layout.name})" if gpu.layout is not None else ""
        raise DeviceError(
            f"{profile.name} on {unit.name} cannot start at memory slice {parsed.start}; "
            f"it can at: {starts}{why}"
        )
    share = None
    if parsed.shared:
        share = _share_of_slice(device, unit, profile, is_there=is_there)
    return Wanted(
        device.device,
        device.pool,
        (device.base_request,),
        unit.uuid,
        profile_id=profile.id,
        profile=profile.name,
        placement=placement,
        share=share,
        share_id=device.share_id,
        mps=mps_limits(device, share),
    )


def _share_of_slice(
    device: AllocatedDevice, unit: GpuUnit, profile: Profile, *, is_there: bool
) -> Share:
    """Share of a slice that several claims may have, still without its namespace."""
    offer = unit.known.slice_sharing or (_ONCE_OFFERED if is_there else None)
    if offer is None:
        raise DeviceError(
            f"slices of {unit.known} are not shared, and the claim was given a part of one; have "
            "the node share its slices again (sliceShares of its class), or delete the pod"
        )
    return share_of(device.ask, offer, profile.memory_mib, namespace="")


def mps_limits(device: AllocatedDevice, share: Share | None = None) -> MpsLimits | None:
    """The limits of its MPS clients; None of a device that no daemon shares.

    Of a ``share`` no client gets more than that, whatever the configuration says.
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
    """The smaller limit; None where neither is one."""
    return min((limit for limit in (one, other) if limit is not None), default=None)
