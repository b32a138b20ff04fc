"""Devices of this node that claims were given, by what the API server says of the claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import read_claim
from dra.claims.sharing import UNSHARED, Sharing, settings_of, sharing_of
from dra.claims.trimming import AllocatedClaim, trim_allocation
from dra.common.resources import RESOURCE_CLAIMS, Obj, at, picked
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from kubeletplugin.claims.ending.claim_fate import is_gone
from kubeletplugin.journal.entries import EntryKey

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


@dataclass(frozen=True, slots=True)
class Given:
    """A device of this node that a reserved claim was given; ``total`` is how many it was."""

    claim: ClaimRef
    device: AllocatedDevice
    total: int

    @property
    def key(self) -> EntryKey:
        """Key of the journal entry that would be its record."""
        device = self.device
        name = f"{device.device}/{device.share_id}" if device.share_id else device.device
        return (self.claim.uid, name)


def given_devices(
    claims: Iterable[Obj], *, driver: str, pool: str, doubts: list[str]
) -> Iterator[Given]:
    """The devices of ``driver`` in ``pool`` that reserved claims were given.

    ``doubts`` gets a text for each claim that cannot be read.
    """
    for obj in claims:
        try:
            claim = read_claim(obj)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            doubts.append(_unreadable(obj, error))
            continue
        if claim.allocation is None or not claim.reserved_for:
            continue
        allocation = claim.allocation
        ours = [
            replace(d, sharing=_sharing(allocation, d, driver))
            for d in allocation.of_driver(driver)
            if d.pool == pool
        ]
        for device in ours:
            yield Given(claim.ref, device, len(ours))


def allocated_devices(
    claims: Iterable[Obj], *, driver: str, pool: str
) -> Iterator[tuple[ClaimRef, str]]:
    """The devices of ``driver`` in ``pool`` that claims were given, reserved or not.

    Those that hold nothing (``adminAccess``) are left out.

    Raises:
        KubeError: a claim cannot be read.
    """
    for obj in claims:
        try:
            claim = read_claim(obj)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise KubeError(_unreadable(obj, error)) from error
        for device in claim.allocation.of_driver(driver) if claim.allocation is not None else ():
            if device.pool == pool and not device.admin_access:
                yield claim.ref, device.device


def _unreadable(obj: Obj, error: Exception) -> str:
    metadata = obj.get("metadata") or {}
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    return f"the claim {name} cannot be read: {error!r}"


def _sharing(allocation: Allocation, device: AllocatedDevice, driver: str) -> Sharing:
    """Sharing that a device was prepared with: none where that could not be understood."""
    try:
        return sharing_of(settings_of(allocation.config, driver), device.request)
    except InvalidObjectError:
        return UNSHARED


def claims_of(api: KubeApi, *, driver: str, pool: str, label_selector: str = "") -> Iterable[Obj]:
    """The claims of the cluster that name ``pool`` in their status, as far as they are read.

    Nothing else is held in memory, above all no parameters for other drivers. The list costs the
    API server a look at each claim of the cluster: nothing calls this again and again.

    Raises:
        KubeError: no answer, or no permission to list them.
    """

    def keep(obj: Obj) -> Obj:
        try:
            slim = _trim(obj, driver)
        except (KeyError, TypeError, AttributeError):
            slim = obj  # whoever reads it says so
        return slim if pool in json.dumps(slim.get("status")) else {}

    listed = api.list(RESOURCE_CLAIMS, label_selector=label_selector, keep=keep)
    return [obj for obj in listed.items if obj]


def claim_of(api: KubeApi, ref: ClaimRef, *, driver: str) -> Obj | None:
    """The claim as :func:`claims_of` gives it; None if it is gone, or another has its name.

    Raises:
        KubeError: no answer.
    """
    try:
        found = api.get_as(AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    except KubeError as error:
        if is_gone(error, ref):
            return None
        raise
    obj = found.as_object(driver)
    return obj if obj["metadata"]["uid"] == ref.uid else None


def _trim(obj: Obj, driver: str) -> Obj:
    """Part of a claim that is read: parameters for other drivers may be large."""
    status = at(obj, "status", default={})
    kept = picked(status, ("reservedFor",))
    if allocation := status.get("allocation"):
        kept["allocation"] = trim_allocation(allocation, driver)
    return {"metadata": picked(obj["metadata"], _METADATA), "status": kept}
