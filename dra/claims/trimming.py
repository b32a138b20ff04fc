"""Bounds on what is read of a claim, whatever its user has written into its spec.

A claim may bring 320 KiB of parameters for other drivers, which are megabytes in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from api.decoding import decodable
from dra.claims.claims import CROWDED, OTHERS_CONFIG, TOO_LARGE
from dra.common.cache import decoded_weight
from dra.common.resources import Obj, at, picked

REQUEST_BYTES = 64 * 2**10
"""Most bytes of a claim's requests and constraints as JSON; usual claims have some hundred."""

DECODED_BYTES = 256 * 2**10
"""The same in memory, roughly: thousands of short selectors take many times their text."""

CONFIG_BYTES = 8 * 2**10
"""Most bytes of a claim's configuration for this driver, as JSON."""


def trim_claim_spec(spec: Obj, driver: str) -> Obj:
    """The part of a claim's ``spec`` that is read.

    Of a spec that is too large only the names and classes of requests are left, marked with
    ``TOO_LARGE``.
    """
    kept = without_others(spec, "devices", driver)
    devices = kept.get("devices") or {}
    config = msgspec.json.encode(devices.get("config") or ())
    rest = msgspec.json.encode({k: v for k, v in devices.items() if k != "config"})
    is_usual = len(config) <= CONFIG_BYTES and len(rest) <= REQUEST_BYTES
    if is_usual and decoded_weight(rest) <= DECODED_BYTES:
        return kept
    why = {TOO_LARGE: len(config) + len(rest)}
    return {"devices": {"requests": [_marked(r, why) for r in devices.get("requests") or ()]}}


def trim_allocation(allocation: Obj, driver: str) -> Obj:
    """The part of a claim's allocation that is read.

    kube-scheduler copies all parameters of the claim into it, whichever driver they are for. All
    configuration is left out if ``driver`` has no device in the allocation. If the claim's own is
    larger than ``CONFIG_BYTES``, only that of classes stays.
    """
    kept = without_others(allocation, "devices", driver)
    devices = kept.get("devices") or {}
    config = devices.get("config") or ()
    if not config:
        return kept
    of_classes = [c for c in config if c.get("source") == "FromClass"]
    of_claim = [c for c in config if c.get("source") != "FromClass"]
    if not any(r.get("driver") == driver for r in devices.get("results") or ()):
        read = []
    elif len(msgspec.json.encode(of_claim)) > CONFIG_BYTES:
        read = of_classes
    else:
        return kept
    return {**kept, "devices": {**devices, "config": read}}


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


def crowded(spec: Obj, status: Obj) -> Obj:
    """Rest of a claim's ``spec`` if its namespace has too many large ones: its first request.

    If the claim is allocated, the requests that have devices stay instead, as their classes count
    in quotas.
    """
    given = {str(r.get("request")) for r in at(status, "allocation", "devices", "results")}
    requests = (spec.get("devices") or {}).get("requests") or ()
    bases = {name.partition("/")[0] for name in given}
    kept = [r for r in requests if r.get("name") in bases] or requests[:1]
    return {"devices": {"requests": [_marked(each, {CROWDED: True}, given) for each in kept]}}


def _marked(request: Obj, why: Obj, given: Collection[str] | None = None) -> Obj:
    """Rest of a request that is not read: its names and classes, and ``why``.

    Of alternatives those in ``given`` are left, or else the first; all of them if ``given`` is
    None.
    """

    def of(body: Obj) -> Obj:
        return {**picked(body, ("name", "deviceClassName")), **why}

    rest, name = picked(request, ("name",)), request.get("name")
    if "exactly" in request:
        rest["exactly"] = of(request["exactly"])
    if alternatives := request.get("firstAvailable"):
        if given is not None:
            chosen = [each for each in alternatives if f"{name}/{each.get('name')}" in given]
            alternatives = chosen or alternatives[:1]
        rest["firstAvailable"] = [of(each) for each in alternatives]
    return rest


class _Part(msgspec.Struct, rename="camel", omit_defaults=True):
    """Part of a claim. Fields that are null are as good as absent."""


class _Opaque(_Part):
    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Config(_Part):
    source: str = ""
    requests: list[str] | None = None
    opaque: _Opaque | None = None


class _Devices(_Part):
    results: list[dict[str, Any]] | None = None
    config: list[_Config] | None = None


class _Allocation(_Part):
    devices: _Devices | None = None


class _Status(_Part):
    allocation: _Allocation | None = None
    reserved_for: list[dict[str, Any]] | None = None
    devices: list[msgspec.Raw] | None = None


class _Metadata(_Part):
    name: str
    namespace: str
    uid: str
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


@decodable
class _Shown(_Part):
    driver: str = ""


@decodable
class AllocatedClaim(_Part):
    """The part of a ResourceClaim that is read from JSON."""

    metadata: _Metadata
    status: _Status | None = None

    def as_object(self, driver: str) -> Obj:
        """The claim as an object, with what is for ``driver`` alone.

        Other drivers' parameters, and what they report of their devices, are left out. If the
        claim's own parameters for ``driver`` are too large, they are left out too, and
        ``TOO_LARGE`` in each of their entries has the size of all in bytes.
        """
        metadata = {k: v for k, v in msgspec.to_builtins(self.metadata).items() if v is not None}
        told = self.status or _Status()
        status: Obj = {"reservedFor": told.reserved_for or []}
        if told.allocation is not None:
            given = told.allocation.devices or _Devices()
            config = _read_config(given.config or [], driver)
            status["allocation"] = {"devices": {"results": given.results or [], "config": config}}
        shown = (raw for raw in told.devices or () if _is_of(raw, driver))
        if devices := [msgspec.json.decode(raw, type=dict[str, Any]) for raw in shown]:
            status["devices"] = devices
        return {"metadata": metadata, "status": status}


def _is_of(raw: msgspec.Raw, driver: str) -> bool:
    return msgspec.json.decode(raw, type=_Shown).driver == driver


def _read_config(entries: list[_Config], driver: str) -> list[Obj]:
    """All entries, as messages name an entry by its place; parameters only of ``driver``."""
    opaques = [(entry, entry.opaque) for entry in entries]
    size = sum(
        len(bytes(opaque.parameters))
        for entry, opaque in opaques
        if opaque is not None and opaque.driver == driver and entry.source != "FromClass"
    )
    found: list[Obj] = []
    for entry, opaque in opaques:
        read: Obj = {"source": entry.source, "requests": entry.requests or []}
        if opaque is not None:
            read["opaque"] = {"driver": opaque.driver}
            if opaque.driver == driver and (size <= CONFIG_BYTES or entry.source == "FromClass"):
                read["opaque"]["parameters"] = msgspec.json.decode(opaque.parameters)
            elif opaque.driver == driver:
                read[TOO_LARGE] = size
        found.append(read)
    return found
