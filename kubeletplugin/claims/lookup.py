"""Reading of this node's claims from the API server: their allocated devices, and their fate.

A claim is read each time that it is worked on: kubelet passes namespace, name and UID only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import msgspec

from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import TOO_LARGE, Claim, read_claim
from dra.claims.sharing import (
    UNSHARED,
    Setting,
    Settings,
    Sharing,
    misplaced,
    misplaced_share,
    not_shared,
    settings_of,
    sharing_of,
    states_share,
    too_many,
)
from dra.claims.stored import CONFIG_BYTES, StoredClaim
from dra.common.resources import RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from dra.kube.http import whole
from kubeletplugin.errors import ClaimError, StartingError
from kubeletplugin.journal.entries import EntryKey

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_SLICE, _SHARE = "-mig-", "-share"
_QUOTED_TEXT = 80
_CORRECT = "correct the claim or its DeviceClass and create the pod again"
CUT = "cut"
"""Field set on a claim whose parameters were left out, as they are too large to be read."""

IDENTITY = ("name", "namespace", "uid", "resourceVersion")


class ClaimUnreadableError(StartingError):
    """The API server did not answer, or refused; the claim may be unchanged."""


class ClaimFate(Enum):
    """State of a claim in the API server.

    ``GONE``: the claim does not exist, or another claim has its name. ``FREED``: it has no
    allocation. ``ENDED``: it is being deleted and no pod has reserved it, so no pod can use it any
    more. ``HERE``: devices of this node are allocated to it and pods have reserved it. ``IDLE``:
    none of these. ``UNKNOWN``: the API server did not answer.
    """

    GONE = auto()
    FREED = auto()
    ENDED = auto()
    HERE = auto()
    IDLE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Given:
    """A device of this node that is allocated to a claim.

    ``total``: number of devices of this node that the claim has. ``is_reserved``: a pod has
    reserved the claim.
    """

    claim: ClaimRef
    device: AllocatedDevice
    total: int
    is_reserved: bool

    @property
    def key(self) -> EntryKey:
        """Key of the journal entry of this device."""
        device = self.device
        name = f"{device.device}/{device.share_id}" if device.share_id else device.device
        return (self.claim.uid, name)


class ClaimReader:
    """Reads claims for ``driver`` and this node's ``pool``. Thread-safe.

    ``seen``: called with each claim that is read. ``asked``: called with the object of each claim
    for which kubelet asks.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        driver: str,
        pool: str,
        seen: Callable[[Claim], None] = lambda _: None,
        asked: Callable[[Obj], None] = lambda _: None,
    ) -> None:
        self.api = api
        self.driver = driver
        self.pool = pool
        self._seen = seen
        self._asked = asked

    def read(self, ref: ClaimRef) -> tuple[Claim, tuple[AllocatedDevice, ...]]:
        """A claim, and its devices of this node with checked configuration.

        Raises:
            ClaimUnreadableError: no answer, or no permission to read the claim.
            ClaimError: the claim has an impossible name, is gone, replaced or not allocated, has no
                device of this node, or has a wrong configuration.
        """
        _check_names(ref)
        found = self._get(ref)
        claim = read_claim(found)
        self._seen(claim)
        self._asked(found)
        return claim, self._given(claim, ref)

    def read_expected(
        self, ref: ClaimRef, claim: Claim | None = None
    ) -> tuple[Claim, tuple[AllocatedDevice, ...]]:
        """A claim for which kubelet has not asked yet, and its devices of this node.

        ``claim``: the claim if it was just seen; it is not read again then.

        Raises:
            ClaimUnreadableError, ClaimError: as :meth:`read`; ClaimError also if kubelet will not
                ask for the claim.
        """
        _check_names(ref)
        claim = claim or read_claim(self._get(ref))
        devices = self._given(claim, ref)
        self._seen(claim)
        if not expected_devices(claim, driver=self.driver, pool=self.pool):
            raise ClaimError("no pod has reserved the claim, or it is being deleted")
        return claim, devices

    def fate(self, ref: ClaimRef) -> ClaimFate:
        """State of a claim; ``UNKNOWN`` without an answer. Never raises KubeError."""
        try:
            found = self.find(ref)
        except KubeError as error:
            _log.debug("claim %s: %s", ref, error)
            return ClaimFate.UNKNOWN
        if found is None:
            return ClaimFate.GONE
        claim = read_claim(found)
        self._seen(claim)
        if claim.allocation is None:
            return ClaimFate.FREED
        if claim.deleting and not claim.reserved_for:
            return ClaimFate.ENDED
        here = any(d.pool == self.pool for d in claim.allocation.of_driver(self.driver))
        return ClaimFate.HERE if here and claim.reserved_for else ClaimFate.IDLE

    def find(self, ref: ClaimRef) -> Obj | None:
        """The part that is read of a claim; None if it is gone, or another claim has its name.

        Raises:
            KubeError: no answer.
        """
        try:
            found = self.api.get_as(StoredClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        except ObjectNotFoundError as error:
            # A missing resource type (an API server still starting) is 404 too, without a name.
            if error.details.get("name") == ref.name:
                return None
            raise
        obj = found.allocated(self.driver)
        return obj if obj["metadata"]["uid"] == ref.uid else None

    def listed(self, label_selector: str = "") -> Iterable[Obj]:
        """The claims whose status names this node, as :func:`keep_on_node` leaves them.

        Other claims, and parameters for other drivers, are not kept in memory. For this list the
        API server reads every claim of the cluster, so callers make it rarely.

        Raises:
            KubeError: no answer, or no permission to list them.
        """

        def keep(raw: msgspec.Raw) -> Obj | None:
            try:
                obj = keep_on_node(raw, self.driver, self.pool)
            except (msgspec.ValidationError, KeyError):  # kept: its reader reports the fault
                return whole(raw) if self.pool.encode() in bytes(raw) else None
            return obj if obj["status"] else None

        return self.api.list(RESOURCE_CLAIMS, label_selector=label_selector, keep=keep).items

    def given_here(self, obj: Obj) -> tuple[Given, ...]:
        """The devices of this node that are allocated to a claim.

        Raises:
            KubeError: the claim cannot be read.
        """
        try:
            claim = read_claim(obj)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            metadata = obj.get("metadata") or {}
            name = f"{metadata.get('namespace')}/{metadata.get('name')}"
            raise KubeError(f"the claim {name} cannot be read: {error!r}") from error
        if claim.allocation is None:
            return ()
        settings = settings_of(claim.allocation.config, self.driver)
        ours = [d for d in claim.allocation.of_driver(self.driver) if d.pool == self.pool]
        is_reserved = bool(claim.reserved_for)
        return tuple(
            Given(claim.ref, replace(d, sharing=_sharing(settings, d)), len(ours), is_reserved)
            for d in ours
        )

    def _get(self, ref: ClaimRef) -> Obj:
        try:
            found = self.api.get_as(StoredClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
            return found.allocated(self.driver)
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

    def _given(self, claim: Claim, ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        """The devices of this node that are allocated to ``claim``, which was read for ``ref``.

        Raises:
            ClaimError: see :meth:`read`.
        """
        if claim.ref.uid != ref.uid:
            raise ClaimError(
                f"the claim was replaced by another of the same name (UID {claim.ref.uid}); "
                "delete the pod that still refers to the old one"
            )
        if claim.allocation is None:
            raise ClaimError("the claim is not allocated; it was taken back, the pod is to wait")
        of_driver = claim.allocation.of_driver(self.driver)
        devices = tuple(d for d in of_driver if d.pool == self.pool)
        if not devices:
            told = ", ".join(f"{d.driver}/{d.pool}/{d.device}" for d in claim.allocation.devices)
            raise ClaimError(
                f"the claim holds no device of driver {self.driver} in this node's pool "
                f"{self.pool}; it was given: {told or 'nothing'}"
            )
        _check_devices(devices)
        return _with_sharing(claim.allocation, devices, self.driver)


def keep_on_node(raw: msgspec.Raw, driver: str, pool: str) -> Obj:
    """The part of a claim that is read of one which has devices of ``pool``; else no ``status``.

    ``CUT`` is set if the claim's own parameters are too large to be read; they are left out then.
    """
    claim = msgspec.json.decode(raw, type=StoredClaim).allocated(driver)
    place, status = (driver, pool), claim["status"]
    given = at(status, "allocation", "devices", default={})
    own = [r for r in at(given, "results") if (r["driver"], r["pool"]) == place]
    told = [d for d in at(status, "devices") if (d["driver"], d["pool"]) == place]
    ours = [c for c in at(given, "config") if at(c, "opaque", "driver") == driver]
    config = [c for c in ours if TOO_LARGE not in c]
    allocation = {"devices": {"results": own, "config": config}}
    kept = {**status, "allocation": allocation, "devices": told} if own else {}
    found = {"metadata": claim["metadata"], "status": kept}
    return {**found, CUT: True} if own and len(config) < len(ours) else found


def expected_devices(claim: Claim, *, driver: str, pool: str) -> tuple[AllocatedDevice, ...]:
    """The claim's devices of ``pool`` if a pod has reserved the claim, so that kubelet will ask.

    Returns none if no pod has, or the claim is being deleted.
    """
    if claim.allocation is None or claim.deleting or not claim.reserved_for:
        return ()
    return tuple(d for d in claim.allocation.of_driver(driver) if d.pool == pool)


def _check_names(ref: ClaimRef) -> None:
    # In a URL an empty name or ".." would address another resource.
    for field, text in (("namespace", ref.namespace), ("name", ref.name)):
        if not _NAME.fullmatch(text):
            raise ClaimError(f"no claim can have the {field} {text[:_QUOTED_TEXT]!r}")


def _check_devices(devices: tuple[AllocatedDevice, ...]) -> None:
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


def _with_sharing(
    allocation: Allocation, devices: tuple[AllocatedDevice, ...], driver: str
) -> tuple[AllocatedDevice, ...]:
    """The devices with their configured sharing, checked before any hardware changes.

    Raises:
        ClaimError: the configuration is wrong, or does not fit the devices.
    """
    if not allocation.config:
        return devices
    settings = settings_of(allocation.config, driver)
    for each in settings:
        if any(each.concerns(d.request) for d in devices):
            _check_config(each, allocation.config[each.number])
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


def _check_config(setting: Setting, entry: Mapping[str, Any]) -> None:
    """Check that an entry of configuration is not too large and can be parsed.

    Raises:
        ClaimError: the entry is too large or cannot be parsed; the message names the place.
    """
    if TOO_LARGE in entry:
        raise ClaimError(
            f"the claim's parameters for driver {entry['opaque']['driver']} have "
            f"{entry[TOO_LARGE]} bytes, and {CONFIG_BYTES} are read: state fewer; {_CORRECT}"
        )
    try:
        setting.read()
    except InvalidObjectError as error:
        raise ClaimError(
            f"status.allocation.devices.config[{setting.number}].opaque.parameters "
            f"({entry.get('source', '')}): {error}; {_CORRECT}"
        ) from error


def _sharing(settings: Settings, device: AllocatedDevice) -> Sharing:
    """Configured sharing of a device; ``UNSHARED`` if the configuration cannot be parsed."""
    try:
        return sharing_of(settings, device.request)
    except InvalidObjectError:
        return UNSHARED
