"""Claims as a node reads them: what they were given, and who has them reserved.

A user may make a claim of a megabyte, of labels and of parameters for other drivers, which would be
many times as large in memory. What is not read is passed over while it is still text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra.claims.claims import TOO_LARGE
from dra.claims.requests.size import CONFIG_BYTES
from dra.common.resources import Obj


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


class _Shown(_Part):
    driver: str = ""


class AllocatedClaim(_Part):
    """A ResourceClaim as it is read from JSON."""

    metadata: _Metadata
    status: _Status | None = None

    def as_object(self, driver: str) -> Obj:
        """The claim as an object, with what is for ``driver`` alone.

        Of other drivers it has neither parameters nor what they show of their devices. The claim's
        own parameters for ``driver`` are left out where they are more than are read, and
        ``TOO_LARGE`` in the entry of each is then their size in bytes.
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
    """Each entry, as its place counts in messages."""
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
