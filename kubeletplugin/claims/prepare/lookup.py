"""Lookup of the devices on this node that the claim named by kubelet was given.

The claim is read from the API server each time: kubelet passes namespace, name and UID only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from api.config import decode_share
from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import TOO_LARGE, Claim, read_claim
from dra.claims.sharing import (
    misplaced,
    misplaced_share,
    not_shared,
    settings_of,
    sharing_of,
    states_share,
    too_many,
)
from dra.claims.trimming import CONFIG_BYTES, AllocatedClaim
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.errors import ClaimError, StartingError

_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_SLICE, _SHARE = "-mig-", "-share"
_QUOTED_TEXT = 80
_CORRECT = "correct the claim or its DeviceClass and create the pod again"


class ClaimUnreadableError(StartingError):
    """The API server did not answer; the claim may be as we remember it."""


def read_devices(  # noqa: PLR0913 - what is read, and who else has use for it
    api: KubeApi,
    ref: ClaimRef,
    *,
    driver: str,
    pool: str,
    seen: Callable[[Claim], None] = lambda _: None,
    know: Callable[[Obj], None] = lambda _: None,
    check: Callable[[Claim, tuple[AllocatedDevice, ...]], None] = lambda _claim, _devices: None,
) -> tuple[AllocatedDevice, ...]:
    """The devices of ``driver`` in ``pool`` that the claim was given, with checked configuration.

    ``seen`` gets the claim as it is, whatever comes of it, and ``know`` its object. ``check`` gets
    it with the devices, and may raise PluginError.

    Raises:
        ClaimUnreadableError: no answer, or no permission to read it.
        ClaimError: impossible by its name, gone, replaced, not allocated, nothing for this node,
            or bad configuration.
    """
    _check_names(ref)
    found = _get(api, ref, driver)
    claim = read_claim(found)
    seen(claim)
    know(found)
    devices = _given(claim, ref, driver=driver, pool=pool)
    check(claim, devices)
    return devices


def _given(claim: Claim, ref: ClaimRef, *, driver: str, pool: str) -> tuple[AllocatedDevice, ...]:
    """The devices that a claim was given for which ``ref`` was asked.

    Raises:
        ClaimError: as ``read_devices``.
    """
    if claim.ref.uid != ref.uid:
        raise ClaimError(
            f"the claim was replaced by another of the same name (UID {claim.ref.uid}); "
            "delete the pod that still refers to the old one"
        )
    if claim.allocation is None:
        raise ClaimError("the claim is not allocated; it was taken back, the pod is to wait")
    devices = _ours(claim.allocation, driver=driver, pool=pool)
    return _with_sharing(claim.allocation, devices, driver)


def expected_devices(claim: Claim, *, driver: str, pool: str) -> tuple[AllocatedDevice, ...]:
    """The devices of ``pool`` for which kubelet will ask: none unless a pod has them reserved."""
    if claim.allocation is None or claim.deleting or not claim.reserved_for:
        return ()
    return tuple(d for d in claim.allocation.of_driver(driver) if d.pool == pool)


def read_expected_devices(  # noqa: PLR0913 - what is read, and who else has it
    api: KubeApi,
    ref: ClaimRef,
    *,
    driver: str,
    pool: str,
    seen: Callable[[Claim], None] = lambda _: None,
    watched: Callable[[ClaimRef], Claim | None] = lambda _: None,
) -> tuple[AllocatedDevice, ...]:
    """The same, of a claim for which kubelet has not asked yet.

    ``watched`` gives a claim as it was a moment ago, or None; what it gives is not read.

    Raises:
        ClaimUnreadableError, ClaimError: as above; also if it will not ask.
    """
    _check_names(ref)
    claim = watched(ref) or read_claim(_get(api, ref, driver))
    devices = _given(claim, ref, driver=driver, pool=pool)
    seen(claim)
    if not expected_devices(claim, driver=driver, pool=pool):
        raise ClaimError("no pod has reserved the claim, or it is being deleted")
    return devices


def _check_config(entry: Mapping[str, Any], driver: str) -> None:
    """Refuse an entry of configuration for ``driver``.

    Raises:
        ClaimError: its claim has more of them than is read.
        InvalidObjectError: says where it is wrong.
    """
    if TOO_LARGE in entry:
        raise ClaimError(
            f"the claim's parameters for driver {driver} have {entry[TOO_LARGE]} bytes, and "
            f"{CONFIG_BYTES} are read: state fewer; {_CORRECT}"
        )
    of_class = entry.get("source") == "FromClass"
    decode_share(entry["opaque"].get("parameters"), of_class=of_class)


def _check_names(ref: ClaimRef) -> None:
    # In a URL an empty name or ".." would stand for something else than a claim.
    for field, text in (("namespace", ref.namespace), ("name", ref.name)):
        if not _NAME.fullmatch(text):
            raise ClaimError(f"no claim can have the {field} {text[:_QUOTED_TEXT]!r}")


def _get(api: KubeApi, ref: ClaimRef, driver: str) -> Obj:
    try:
        found = api.get_as(AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        return found.as_object(driver)
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
        told = ", ".join(f"{d.driver}/{d.pool}/{d.device}" for d in allocation.devices)
        raise ClaimError(
            f"the claim holds no device of driver {driver} in this node's pool {pool}; "
            f"it was given: {told or 'nothing'}"
        )
    given = [(d.device, d.share_id) for d in devices]
    for name, share in given:
        if given.count((name, share)) > 1:
            raise ClaimError(f"the claim was given device {name} twice")
    for device in devices:
        if device.admin_access and _SLICE in device.device:
            raise ClaimError(
                f"request {device.request} asks for adminAccess to {device.device}, which is made "
                "for the claim that holds it; look at the whole GPU, through which it is seen"
            )
    return devices


def _with_sharing(
    allocation: Allocation, devices: tuple[AllocatedDevice, ...], driver: str
) -> tuple[AllocatedDevice, ...]:
    """The devices with the sharing that is configured; a mistake is told before hardware changes.

    Where a device is placed was the controller's business.
    """
    requests = {name for d in devices for name in (d.request, d.base_request)}
    for index, entry in enumerate(allocation.config):
        opaque = entry.get("opaque") or {}
        wanted = entry.get("requests") or requests
        if opaque.get("driver") != driver or requests.isdisjoint(wanted):
            continue
        try:
            _check_config(entry, driver)
        except InvalidObjectError as error:
            source = entry.get("source", "")
            raise ClaimError(
                f"status.allocation.devices.config[{index}].opaque.parameters ({source}): {error}; "
                f"{_CORRECT}"
            ) from error
    if not allocation.config:
        return devices
    settings = settings_of(allocation.config, driver)
    shared = tuple(replace(d, sharing=sharing_of(settings, d.request)) for d in devices)
    for device in shared:
        is_slice = _SLICE in device.device
        if problem := misplaced(device.sharing, device.device, is_slice=is_slice):
            raise ClaimError(f"{problem}; {_CORRECT}")
        kind = states_share(settings, device.request)
        if kind and is_slice and not device.device.endswith(_SHARE):
            raise ClaimError(f"{not_shared(device.device, is_slice=True)}; {_CORRECT}")
        if problem := misplaced_share(kind, device.device, is_slice=is_slice):
            raise ClaimError(f"{problem}; {_CORRECT}")
    clients = sum(d.sharing.by_mps for d in shared)
    if clients > 1:
        raise ClaimError(f"{too_many(str(clients))}; {_CORRECT}")
    return shared
