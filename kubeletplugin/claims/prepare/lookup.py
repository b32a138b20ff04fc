"""Lookup of the devices on this node that the claim named by kubelet was given.

The claim is read from the API server each time: kubelet passes namespace, name and UID only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from api.config import decode as decode_config
from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, read_claim
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import (
    DeviceNameError,
    GpuDevice,
    MigDevice,
    gpu_name,
    parse_device,
    profile_label,
)
from dra.kube.client.transport import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.claims.prepare.slices import check_mig
from kubeletplugin.errors import ClaimError, DeviceError, StartingError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry, State

_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_QUOTED_TEXT = 80


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
        )


class ClaimUnreadableError(StartingError):
    """The API server did not answer; the claim may be as we remember it."""


def read_devices(
    api: KubeApi,
    ref: ClaimRef,
    *,
    driver: str,
    pool: str,
    seen: Callable[[Claim], None] = lambda _: None,
) -> tuple[AllocatedDevice, ...]:
    """The devices of ``driver`` in ``pool`` that the claim was given, with checked configuration.

    ``seen`` gets the claim as it is, whatever comes of it.

    Raises:
        ClaimUnreadableError: no answer, or no permission to read it.
        ClaimError: impossible by its name, gone, replaced, not allocated, nothing for this node,
            or bad configuration.
    """
    _check_names(ref)
    claim = read_claim(_get(api, ref))
    seen(claim)
    if claim.ref.uid != ref.uid:
        raise ClaimError(
            f"the claim was replaced by another of the same name (UID {claim.ref.uid}); "
            "delete the pod that still refers to the old one"
        )
    if claim.allocation is None:
        raise ClaimError("the claim is not allocated; it was taken back, the pod is to wait")
    devices = _ours(claim.allocation, driver=driver, pool=pool)
    _check_config(claim.allocation, devices, driver)
    return devices


def resolve(device: AllocatedDevice, hardware: Hardware) -> tuple[GpuUnit, Wanted]:
    """The GPU, profile and placement that an allocated device's name stands for.

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
        if gpu.card.problem:
            raise DeviceError(f"{gpu} cannot be used: {gpu.card.problem}")
        if gpu.unhealthy:
            raise DeviceError(f"{gpu} is not healthy: {gpu.unhealthy}")
        return unit, Wanted(device.device, device.pool, requests, unit.uuid)
    return unit, _slice(device, parsed, unit)


def _slice(device: AllocatedDevice, parsed: MigDevice, unit: GpuUnit) -> Wanted:
    gpu = unit.known
    check_mig(gpu)
    profiles = gpu.geometry.profiles if gpu.geometry else ()
    profile = next((p for p in profiles if p.id == parsed.profile_id), None)
    if profile is None or profile_label(profile.name) != parsed.profile_label:
        offered = ", ".join(f"{p.name} ({profile_label(p.name)}-{p.id})" for p in profiles)
        why = unit.struck(parsed.profile_id)
        raise DeviceError(
            f"{unit.name} has no profile {parsed.profile_label}-{parsed.profile_id}"
            f"{' now: ' if why else ''}{why}; it has: {offered or 'none'}"
        )
    placement = next((p for p in profile.placements if p.start == parsed.start), None)
    if placement is None:
        starts = ", ".join(str(p.start) for p in profile.placements)
        raise DeviceError(
            f"{profile.name} on {unit.name} cannot start at memory slice {parsed.start}; "
            f"it can at: {starts}"
        )
    return Wanted(
        device.device,
        device.pool,
        (device.base_request,),
        unit.uuid,
        profile_id=profile.id,
        profile=profile.name,
        placement=placement,
    )


def _check_names(ref: ClaimRef) -> None:
    # In a URL an empty name or ".." would stand for something else than a claim.
    for field, text in (("namespace", ref.namespace), ("name", ref.name)):
        if not _NAME.fullmatch(text):
            raise ClaimError(f"no claim can have the {field} {text[:_QUOTED_TEXT]!r}")


def _get(api: KubeApi, ref: ClaimRef) -> Mapping[str, Any]:
    try:
        return api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    except ObjectNotFoundError as error:
        raise ClaimError("the claim does not exist any more") from error
    except ForbiddenError as error:
        raise ClaimUnreadableError(
            f"not allowed to read the claim: {error}; grant this plugin's service account "
            "get on resourceclaims.resource.k8s.io"
        ) from error
    except KubeError as error:
        raise ClaimUnreadableError(
            f"cannot read the claim from the API server: {error}; it is tried again"
        ) from error


def _ours(allocation: Allocation, *, driver: str, pool: str) -> tuple[AllocatedDevice, ...]:
    of_driver = allocation.of_driver(driver)
    devices = tuple(d for d in of_driver if d.pool == pool)
    if not devices:
        given = ", ".join(f"{d.driver}/{d.pool}/{d.device}" for d in allocation.devices)
        raise ClaimError(
            f"the claim holds no device of driver {driver} in this node's pool {pool}; "
            f"it was given: {given or 'nothing'}"
        )
    names = [d.device for d in devices]
    for name in names:
        if names.count(name) > 1:
            raise ClaimError(f"the claim was given device {name} twice")
    for device in devices:
        if device.admin_access and "-mig-" in device.device:
            raise ClaimError(
                f"request {device.request} asks for adminAccess to {device.device}, which is made "
                "for the claim that holds it; look at the whole GPU, through which it is seen"
            )
    return devices


def _check_config(
    allocation: Allocation, devices: tuple[AllocatedDevice, ...], driver: str
) -> None:
    """Decode what concerns our devices, so that a mistake is told before hardware changes.

    The only configuration there is steers placement, which was the controller's business.
    """
    requests = {name for d in devices for name in (d.request, d.base_request)}
    for index, entry in enumerate(allocation.config):
        opaque = entry.get("opaque") or {}
        wanted = entry.get("requests") or requests
        if opaque.get("driver") != driver or requests.isdisjoint(wanted):
            continue
        try:
            decode_config(opaque.get("parameters"))
        except InvalidObjectError as error:
            source = entry.get("source", "")
            raise ClaimError(
                f"status.allocation.devices.config[{index}].opaque.parameters ({source}): {error}; "
                "correct the claim or its DeviceClass and create the pod again"
            ) from error
