"""Claims of this node as the API server has them: what each was given, and what became of it.

A claim is read each time that it is worked on: kubelet passes namespace, name and UID only.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

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
from dra.claims.trimming import CONFIG_BYTES, AllocatedClaim, trim_allocation, without_others
from dra.common.resources import RESOURCE_CLAIMS, Obj, at, picked
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.errors import ClaimError, StartingError
from kubeletplugin.journal.entries import EntryKey

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_SLICE, _SHARE = "-mig-", "-share"
_QUOTED_TEXT = 80
_CORRECT = "correct the claim or its DeviceClass and create the pod again"
IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_METADATA = (*IDENTITY, "deletionTimestamp")
CUT = "cut"
"""Field of a claim whose parameters are too many to be read."""


class ClaimUnreadableError(StartingError):
    """The API server did not answer; the claim may be as we remember it."""


class ClaimFate(Enum):
    """``GONE``: it does not exist, or another has its name. ``FREED``: it has no allocation.

    ``ENDED``: it is being deleted and no pod has reserved it, so none ever will again. ``HERE``:
    devices of this node are allocated to it and pods have reserved it. ``IDLE``: anything else
    that it may be. ``UNKNOWN``: there was no answer, which is a sign of nothing.
    """

    GONE = auto()
    FREED = auto()
    ENDED = auto()
    HERE = auto()
    IDLE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Given:
    """A device of this node that a claim was given; ``total`` is how many it was."""

    claim: ClaimRef
    device: AllocatedDevice
    total: int
    is_reserved: bool

    @property
    def key(self) -> EntryKey:
        """Key of the journal entry that would be its record."""
        device = self.device
        name = f"{device.device}/{device.share_id}" if device.share_id else device.device
        return (self.claim.uid, name)


class ClaimReader:
    """Reads claims for ``driver`` and this node's ``pool``. Thread-safe.

    ``seen`` gets each claim as it was read, whatever comes of it, ``asked`` the object of one for
    which kubelet asks.
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
        """A claim, and the devices that it was given here, with checked configuration.

        Raises:
            ClaimUnreadableError: no answer, or no permission to read it.
            ClaimError: impossible by its name, gone, replaced, not allocated, nothing for this
                node, or bad configuration.
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
        """A claim for which kubelet has not asked yet, and its devices.

        It is not read where ``claim`` is given, as it was a moment ago.

        Raises:
            ClaimUnreadableError, ClaimError: as above; also if kubelet will not ask.
        """
        _check_names(ref)
        claim = claim or read_claim(self._get(ref))
        devices = self._given(claim, ref)
        self._seen(claim)
        if not expected_devices(claim, driver=self.driver, pool=self.pool):
            raise ClaimError("no pod has reserved the claim, or it is being deleted")
        return claim, devices

    def fate(self, ref: ClaimRef) -> ClaimFate:
        """State of a claim, as far as the API server can be asked. Never raises KubeError."""
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
        """A claim as :meth:`listed` gives it; None if it is gone, or another has its name.

        Raises:
            KubeError: no answer.
        """
        try:
            found = self.api.get_as(
                AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace
            )
        except ObjectNotFoundError as error:
            # A missing resource type (an API server still starting) is 404 too, without a name.
            if error.details.get("name") == ref.name:
                return None
            raise
        obj = found.as_object(self.driver)
        return obj if obj["metadata"]["uid"] == ref.uid else None

    def listed(self, label_selector: str = "") -> Iterable[Obj]:
        """The claims of the cluster that name this node in their status, as far as they are read.

        Nothing else is held in memory, above all no parameters for other drivers. The list costs
        the API server a look at each claim of the cluster: nothing calls this again and again.

        Raises:
            KubeError: no answer, or no permission to list them.
        """

        def keep(obj: Obj) -> Obj:
            try:
                return trim_claim(obj, self.driver, self.pool)
            except (KeyError, TypeError, AttributeError):  # whoever reads it says so
                return obj if self.pool in json.dumps(obj.get("status")) else {}

        found = self.api.list(RESOURCE_CLAIMS, label_selector=label_selector, keep=keep)
        return [obj for obj in found.items if obj.get("status")]

    def given_here(self, obj: Obj) -> tuple[Given, ...]:
        """The devices of this node that a claim was given.

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
            found = self.api.get_as(
                AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace
            )
            return found.as_object(self.driver)
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
        """The devices that a claim was given for which ``ref`` was asked.

        Raises:
            ClaimError: as ``read``.
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


def expected_devices(claim: Claim, *, driver: str, pool: str) -> tuple[AllocatedDevice, ...]:
    """The devices of ``pool`` for which kubelet will ask: none unless a pod has them reserved."""
    if claim.allocation is None or claim.deleting or not claim.reserved_for:
        return ()
    return tuple(d for d in claim.allocation.of_driver(driver) if d.pool == pool)


def _check_names(ref: ClaimRef) -> None:
    # In a URL an empty name or ".." would stand for something else than a claim.
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
    """The devices with the sharing that is configured; a mistake is told before hardware changes.

    Where a device is placed was the controller's business.
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
    """Refuse an entry of configuration that says more than is read, or cannot be understood.

    Raises:
        ClaimError: says where it is wrong.
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
    """Sharing that a device was prepared with: none where that could not be understood."""
    try:
        return sharing_of(settings, device.request)
    except InvalidObjectError:
        return UNSHARED


def trim_claim(obj: Obj, driver: str, pool: str) -> Obj:
    """Part of a claim that is read: its name, and what it was given of ``pool``, with parameters.

    ``status`` is empty where that is nothing. ``CUT`` is set where the claim has more parameters
    than are read: those of its own are left out then.
    """
    metadata = picked(obj["metadata"], _METADATA)
    results = at(obj, "status", "allocation", "devices", "results")
    own = [r for r in results if (r["driver"], r["pool"]) == (driver, pool)]
    if not own:
        return {"metadata": metadata, "status": {}}
    status = obj["status"]
    whole = without_others(status["allocation"], "devices", driver)
    read = trim_allocation(whole, driver)
    told = [d for d in at(status, "devices") if (d["driver"], d["pool"]) == (driver, pool)]
    kept = picked(status, ("reservedFor",)) | {"devices": told}
    kept["allocation"] = {**read, "devices": {**read["devices"], "results": own}}
    cut = len(at(read, "devices", "config")) < len(at(whole, "devices", "config"))
    return {"metadata": metadata, "status": kept} | ({CUT: True} if cut else {})
