"""ResourceClaims as they are stored: the part that is read of their JSON, and bounds on it.

A claim may bring 320 KiB of parameters for other drivers, which are megabytes in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from api.decoding import decodable
from dra.claims.allocation import node_label
from dra.claims.claims import (
    ALLOCATED_BY,
    CROWDED,
    OTHERS_CONFIG,
    POD_CLAIM,
    TOO_LARGE,
)
from dra.common.cache import decoded_weight
from dra.common.parts import ABSENT, Owner, Part, controllers, cut, present, text_of
from dra.common.resources import Obj, picked

REQUEST_BYTES = 64 * 2**10
"""Most bytes of a claim's requests and constraints as JSON; usual claims have some hundred."""

DECODED_BYTES = 256 * 2**10
"""The same in memory, roughly: thousands of short selectors take many times their text."""

CONFIG_BYTES = 8 * 2**10
"""Most bytes of a claim's configuration for this driver, as JSON."""

MOST_FINALIZERS = 64
"""Upper bound on finalizers: a claim with more is never written to."""

FINALIZERS_BYTES = 8 * 2**10
"""Upper bound on their JSON."""

LARGEST = 2**17
"""Upper bound on the JSON bytes of a claim that is to be allocated.

A write to a claim with 8,500 labels takes the API server 0.4 s of CPU. A claim as large as etcd's
limit cannot be written at all.
"""

TOO_MANY = ["too-many"] * (MOST_FINALIZERS + 1)
"""In the place of finalizers that are not read."""

_FROM_CLASS = "FromClass"


class _Opaque(Part):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


@decodable
class _Config(Part):
    source: str = ""
    requests: list[str] | None = None
    opaque: _Opaque | None = None


@decodable
class _AnyDriver(Part):
    driver: str = ""


@decodable
class _OtherConfig(Part):
    opaque: _AnyDriver | None = None


@decodable
class _Device(Part):
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(name="shareID", default=None)
    conditions: list[Obj] | None = None


class _Devices(Part):
    results: list[Obj] | None = None
    config: list[msgspec.Raw] | None = None


class _Allocation(Part):
    devices: _Devices | None = None
    node_selector: msgspec.Raw = ABSENT
    allocation_timestamp: str | None = None


class _Status(Part):
    allocation: _Allocation | None = None
    reserved_for: list[Obj] | None = None
    devices: list[msgspec.Raw] | None = None


class _Asked(Part):
    requests: msgspec.Raw = ABSENT
    constraints: msgspec.Raw = ABSENT
    config: list[msgspec.Raw] | None = None


class _Spec(Part):
    devices: _Asked | None = None


class _Choice(Part):
    name: str = ""
    device_class_name: str = ""


@decodable
class _Request(Part):
    name: str = ""
    exactly: _Choice | None = None
    first_available: list[_Choice] | None = None


class _FieldsOfStatus(msgspec.Struct):
    allocation: msgspec.Raw = msgspec.field(name="f:allocation", default=ABSENT)


class _Fields(msgspec.Struct):
    status: _FieldsOfStatus | None = msgspec.field(name="f:status", default=None)


class _Manager(Part):
    manager: str = ""
    fields: _Fields | None = msgspec.field(name="fieldsV1", default=None)


class _Annotations(msgspec.Struct):
    pod_claim: str = msgspec.field(name=POD_CLAIM, default="")


class _Metadata(Part):
    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: msgspec.Raw = ABSENT
    owner_references: list[Owner] | None = None
    annotations: _Annotations | None = None
    labels: msgspec.Raw = ABSENT
    managed_fields: list[_Manager] | None = None

    @property
    def identity(self) -> Obj:
        """Name, namespace, UID and version, and the time of deletion if it is being deleted."""
        found = {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        if self.deletion_timestamp is not None:
            found["deletionTimestamp"] = self.deletion_timestamp
        return found


@decodable
class StoredClaim(Part):
    """The part of a ResourceClaim that any of the programs reads."""

    metadata: _Metadata
    spec: _Spec | None = None
    status: _Status | None = None

    def allocated(self, driver: str) -> Obj:
        """The claim with its allocation, and no more than is for ``driver``; without its spec.

        Other drivers' parameters, and what they report of their devices, are left out. If the
        claim's own parameters for ``driver`` are too large, they are left out too, and
        ``TOO_LARGE`` in each of their entries has the size of all in bytes.
        """
        told = self.status or _Status()
        created = present({"creationTimestamp": self.metadata.creation_timestamp})
        status: Obj = {"reservedFor": told.reserved_for or []}
        if told.allocation is not None:
            given = told.allocation.devices or _Devices()
            config = _numbered(given.config or (), driver)
            status["allocation"] = {"devices": {"results": given.results or [], "config": config}}
        if own := self._shown(driver):
            status["devices"] = [msgspec.json.decode(raw) for raw in own]
        return {"metadata": self.metadata.identity | created, "status": status}

    def shown(self, driver: str) -> list[Obj]:
        """Conditions of the devices of ``driver``."""
        own = (msgspec.json.decode(raw, type=_Device) for raw in self._shown(driver))
        return [msgspec.to_builtins(each) for each in own]

    def _shown(self, driver: str) -> list[msgspec.Raw]:
        told = (self.status or _Status()).devices or ()
        return [d for d in told if msgspec.json.decode(d, type=_AnyDriver).driver == driver]


def _numbered(entries: Iterable[msgspec.Raw], driver: str) -> list[Obj]:
    """All entries, as messages name an entry by its place; parameters only of ``driver``."""
    read = [msgspec.json.decode(entry, type=_Config) for entry in entries]
    size = sum(
        len(bytes(each.opaque.parameters))
        for each in read
        if each.opaque and each.opaque.driver == driver and each.source != _FROM_CLASS
    )
    found: list[Obj] = []
    for each in read:
        entry: Obj = {"source": each.source, "requests": each.requests or []}
        if each.opaque is not None:
            entry["opaque"] = {"driver": each.opaque.driver}
            if each.opaque.driver == driver and (
                size <= CONFIG_BYTES or each.source == _FROM_CLASS
            ):
                entry["opaque"]["parameters"] = msgspec.json.decode(each.opaque.parameters)
            elif each.opaque.driver == driver:
                entry[TOO_LARGE] = size
        found.append(entry)
    return found


@decodable
class _Kept(Part):
    """The kept part of a claim's ``spec.devices``, in the order of the API."""

    requests: msgspec.Raw = ABSENT
    constraints: msgspec.Raw = ABSENT
    config: list[msgspec.Raw] | None = None
    others_config: bool = msgspec.field(name=OTHERS_CONFIG, default=False)


def keep_claim(raw: msgspec.Raw, driver: str) -> Obj:
    """The part of a claim that is read; ``spec``, finalizers and nodeSelector are text.

    Of a spec that is too large only the names and classes of requests are left, marked with
    ``TOO_LARGE``. A claim that is too large to be written has more finalizers than may be.
    """
    claim = msgspec.json.decode(raw, type=StoredClaim)
    status, told = claim.status, Obj()
    if status is not None:
        if status.allocation is not None:
            told["allocation"] = _allocation(status.allocation, driver)
        if status.reserved_for:
            told["reservedFor"] = status.reserved_for
        if devices := claim.shown(driver):
            told["devices"] = devices
    metadata = _metadata(claim.metadata, driver, is_allocated="allocation" in told)
    if "allocation" not in told and len(bytes(raw)) > LARGEST:
        metadata["finalizers"] = TOO_MANY
    kept: Obj = {"metadata": metadata, "spec": _spec(claim.spec, driver)}
    return {**kept, "status": told} if told else kept


def _metadata(metadata: _Metadata, driver: str, *, is_allocated: bool) -> Obj:
    found = metadata.identity
    found |= present({"creationTimestamp": metadata.creation_timestamp})
    if text := text_of(metadata.finalizers):
        is_few = len(text) <= FINALIZERS_BYTES and text.count(b",") < MOST_FINALIZERS
        found["finalizers"] = text if is_few else TOO_MANY
    entry = ""
    if metadata.annotations is not None and not is_allocated:
        entry = metadata.annotations.pod_claim
    if entry:
        found["annotations"] = {POD_CLAIM: cut(entry)}
    if owners := controllers(metadata.owner_references, names=bool(entry)):
        found["ownerReferences"] = owners
    label = node_label(driver)
    if label.encode() in bytes(metadata.labels):
        labels = msgspec.json.decode(metadata.labels, type=dict[str, str])
        found["labels"] = picked(labels, (label,))
    managers = [
        cut(each.manager)
        for each in metadata.managed_fields or ()
        if each.fields and each.fields.status and bytes(each.fields.status.allocation)
    ]
    return {**found, ALLOCATED_BY: managers} if managers else found


def _spec(spec: _Spec | None, driver: str) -> bytes:
    asked = (spec.devices if spec is not None else None) or _Asked()
    config = asked.config or []
    own = [each for each in config if _is_for(each, driver)]
    size = sum(len(bytes(each)) for each in own)
    rest = text_of(asked.requests) + text_of(asked.constraints)
    if size > CONFIG_BYTES or len(rest) > REQUEST_BYTES or decoded_weight(rest) > DECODED_BYTES:
        requests = msgspec.json.decode(text_of(asked.requests) or b"[]", type=list[_Request])
        marked = [_marked(each, {TOO_LARGE: size + len(rest)}) for each in requests]
        return msgspec.json.encode({"devices": {"requests": marked}})
    kept = _Kept(asked.requests, asked.constraints, own or None, len(own) < len(config))
    return msgspec.json.encode({"devices": kept})


def without_others(holder: Obj, field: str, driver: str) -> Obj:
    """``holder``, and in ``field`` of it no configuration but that for ``driver``."""
    inner = holder.get(field) or {}
    if "config" not in inner:
        return holder
    own = [c for c in inner["config"] if (c.get("opaque") or {}).get("driver") == driver]
    kept = {k: v for k, v in inner.items() if k != "config"}
    if own:
        kept["config"] = own
    if len(own) < len(inner["config"]):
        kept[OTHERS_CONFIG] = True
    return {**holder, field: kept}


def _is_for(entry: msgspec.Raw, driver: str) -> bool:
    opaque = msgspec.json.decode(entry, type=_OtherConfig).opaque
    return opaque is not None and opaque.driver == driver


def _allocation(allocation: _Allocation, driver: str) -> Obj:
    """The part of an allocation that is read.

    kube-scheduler copies all parameters of the claim into it, whichever driver they are for. All
    configuration is left out if ``driver`` has no device in the allocation. If the claim's own is
    larger than ``CONFIG_BYTES``, only that of classes stays.
    """
    given = allocation.devices or _Devices()
    devices: Obj = present({"results": given.results})
    if config := _config(given, driver):
        devices["config"] = config
    return present(
        {
            "devices": devices,
            "nodeSelector": text_of(allocation.node_selector),
            "allocationTimestamp": allocation.allocation_timestamp,
        }
    )


def _config(given: _Devices, driver: str) -> list[Obj]:
    """The configuration for ``driver`` that is read."""
    if not given.config or all(r.get("driver") != driver for r in given.results or ()):
        return []
    own = [each for each in given.config if _is_for(each, driver)]
    of_class = [e for e in own if msgspec.json.decode(e, type=_Config).source == _FROM_CLASS]
    size = sum(map(len, map(bytes, own))) - sum(map(len, map(bytes, of_class)))
    kept = of_class if size > CONFIG_BYTES else own
    return [msgspec.json.decode(each) for each in kept]


def crowded(spec: bytes, results: Iterable[Obj]) -> Obj:
    """Rest of a claim's ``spec`` if its namespace has too many large ones: its first request.

    If the claim is allocated, the requests that have devices in ``results`` stay instead, as their
    classes count in quotas.
    """
    given = {str(r.get("request")) for r in results}
    requests = msgspec.json.decode(spec, type=_Crowd).devices.requests or []
    bases = {name.partition("/")[0] for name in given}
    kept = [r for r in requests if r.name in bases] or requests[:1]
    return {"devices": {"requests": [_marked(each, {CROWDED: True}, given) for each in kept]}}


class _CrowdDevices(Part):
    requests: list[_Request] | None = None


@decodable
class _Crowd(Part):
    devices: _CrowdDevices


def _marked(request: _Request, why: Obj, given: Collection[str] | None = None) -> Obj:
    """Rest of a request that is not read: its names and classes, and ``why``.

    Of alternatives those in ``given`` are left, or else the first; all of them if ``given`` is
    None.
    """

    def of(body: _Choice) -> Obj:
        return {**msgspec.to_builtins(body), **why}

    rest: Obj = {"name": request.name}
    if request.exactly is not None:
        rest["exactly"] = of(request.exactly)
    if alternatives := request.first_available:
        if given is not None:
            chosen = [each for each in alternatives if f"{request.name}/{each.name}" in given]
            alternatives = chosen or alternatives[:1]
        rest["firstAvailable"] = [of(each) for each in alternatives]
    return rest
