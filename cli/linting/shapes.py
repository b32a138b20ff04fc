"""Shapes of what rules read of pods, claims and classes; the API server refuses all others.

A field may be null, which counts as absent; fields that no rule reads are not looked at.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from api.decoding import decodable
from cli.linting.documents import Document, Level, Path, Remark

_Amounts = dict[str, str | int | float | None] | None
_Texts = dict[str, str | None] | None
_Names = list[str] | None


class _Named(msgspec.Struct):
    name: str | None = None


class _Source(msgspec.Struct, rename="camel"):
    config_map_ref: _Named | None = None


class _Use(_Named):
    request: str | None = None


class _Resources(msgspec.Struct):
    limits: _Amounts = None
    requests: _Amounts = None
    claims: list[_Use] | None = None


class _Container(_Named, rename="camel"):
    resources: _Resources | None = None
    restart_policy: str | None = None
    env_from: list[_Source] | None = None


class _Entry(_Named, rename="camel"):
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    resource_claims: list[_Entry] | None = None
    scheduling_gates: list[_Named] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None


class _Metadata(_Named):
    annotations: _Texts = None
    finalizers: _Names = None


@decodable
class Pod(msgspec.Struct):
    """Metadata and spec of a pod, or of a template of pods."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Cel(msgspec.Struct):
    expression: str


class _Selector(msgspec.Struct):
    cel: _Cel


class _Opaque(msgspec.Struct):
    driver: str | None = None
    parameters: dict[str, Any] | None = None


class _Config(msgspec.Struct):
    requests: _Names = None
    opaque: _Opaque | None = None


class _Capacity(msgspec.Struct):
    requests: _Amounts = None


class _Body(msgspec.Struct, rename="camel"):
    name: str | None = None
    device_class_name: str | None = None
    selectors: list[_Selector] | None = None
    count: int | None = None
    allocation_mode: str | None = None
    admin_access: bool | None = None
    tolerations: list[dict[str, Any]] | None = None
    capacity: _Capacity | None = None


class _Request(_Body, rename="camel"):
    exactly: _Body | None = None
    first_available: list[_Body] | None = None


class _Constraint(msgspec.Struct, rename="camel"):
    requests: _Names = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


@decodable
class Devices(msgspec.Struct):
    """``spec.devices`` of a claim."""

    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None
    config: list[_Config] | None = None


class _ClassSpec(msgspec.Struct, rename="camel"):
    selectors: list[_Selector] | None = None
    config: list[_Config] | None = None
    extended_resource_name: str | None = None


@decodable
class Class(msgspec.Struct):
    """A DeviceClass."""

    metadata: _Metadata | None = None
    spec: _ClassSpec | None = None


_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")


def misshapen(document: Document, at: Path, value: Any, shape: Any) -> Remark | None:
    """The first thing in ``value``, which is at a path of a document, that is not of ``shape``."""
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        steps = [int(number) if number else key for key, number in _STEP.findall(where)]
        message = f"{problem[:1].lower()}{problem[1:]}: the API server refuses it"
        return document.remark(Level.ERROR, (*at, *steps), message)
    return None
