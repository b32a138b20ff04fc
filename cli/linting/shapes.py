"""Shapes of what rules read of pods, claims and classes; the API server refuses all others.

A field may be null, which counts as absent, unless the API server needs it; fields that no rule
reads are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import GenericAlias
from typing import Any

import msgspec

from api.decoding import decodable
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, steps
from dra.common.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource


def _shape(*needed: str, **fields: Any) -> Any:
    """The type of a mapping with these fields, each called as in Kubernetes, or null."""
    types = [
        (name, kind) if name in needed else (name, kind | None, None)
        for name, kind in fields.items()
    ]
    return msgspec.defstruct("Shape", types, rename="camel", kw_only=True, omit_defaults=True)


def _list(kind: Any) -> Any:
    return GenericAlias(list, (kind,))


_AMOUNTS = dict[str, str | int | float | None]
_NAMED, _TEXTS = _shape(name=str), list[str]
_USES = _list(_shape(name=str, request=str))
_RESOURCES = _shape(limits=_AMOUNTS, requests=_AMOUNTS, claims=_USES)
_SOURCES = _list(_shape(config_map_ref=_NAMED))
_CONTAINERS = _list(_shape(name=str, resources=_RESOURCES, restart_policy=str, env_from=_SOURCES))
_ENTRIES = _list(_shape(name=str, resource_claim_name=str, resource_claim_template_name=str))
_METADATA = _shape(name=str, annotations=dict[str, str | None], finalizers=_TEXTS)
_POD_SPEC = _shape(
    containers=_CONTAINERS,
    init_containers=_CONTAINERS,
    resource_claims=_ENTRIES,
    scheduling_gates=_list(_NAMED),
    **dict.fromkeys(("node_name", "scheduler_name", "runtime_class_name"), str),
)
POD = decodable(_shape(metadata=_METADATA, spec=_POD_SPEC))
"""Metadata and spec of a pod, or of a template of pods."""

_SELECTORS = _list(_shape(cel=_shape("expression", expression=str)))
_CONFIG = _list(_shape(requests=_TEXTS, opaque=_shape(driver=str, parameters=dict[str, Any])))
_BODY: dict[str, Any] = {
    "name": str,
    "device_class_name": str,
    "selectors": _SELECTORS,
    "count": int,
    "allocation_mode": str,
    "admin_access": bool,
    "tolerations": list[dict[str, Any]],
    "capacity": _shape(requests=_AMOUNTS),
}
_EXACT = _shape("device_class_name", **_BODY)
_ALTERNATIVES = _list(_shape("name", "device_class_name", **_BODY))
_REQUESTS = _list(_shape("name", **_BODY, exactly=_EXACT, first_available=_ALTERNATIVES))
_CONSTRAINTS = _list(_shape(requests=_TEXTS, match_attribute=str, distinct_attribute=str))
_DEVICES = _shape(requests=_REQUESTS, constraints=_CONSTRAINTS, config=_CONFIG)
_CLAIM = _shape(spec=_shape(devices=_DEVICES))
_CLASS_SPEC = _shape(selectors=_SELECTORS, config=_CONFIG, extended_resource_name=str)

_KINDS: tuple[tuple[Resource, Path, Any], ...] = (
    (RESOURCE_CLAIMS, ("spec", "devices"), decodable(_CLAIM)),
    (RESOURCE_CLAIM_TEMPLATES, ("spec", "spec", "devices"), decodable(_shape(spec=_CLAIM))),
    (DEVICE_CLASSES, ("spec",), decodable(_shape(metadata=_METADATA, spec=_CLASS_SPEC))),
)
"""Kinds of objects about devices, the places of what they say of them, and their shapes."""


def about_devices(document: Document) -> Iterator[tuple[Document, Path] | Remark]:
    """A claim, template or class, as far as rules read it, and where it is about devices.

    Requests are as in v1. Nothing for objects of other kinds; a remark for one of a wrong shape.
    """
    for kind, place, shape in _KINDS:
        if document.is_a(kind):
            read = shaped(document, (), document.obj, shape)
            if isinstance(read, Remark):
                yield read
            else:
                nest(mapping(read, *map(str, place)))
                yield replace(document, obj=document.obj | read), place


def nest(devices: dict[str, Any]) -> None:
    """Move fields of v1beta1 requests below ``exactly``, as v1 has them."""
    for _, request in entries(devices, "requests"):
        if "deviceClassName" in request:
            fields = [field for field in request if field not in ("name", "exactly")]
            request["exactly"] = {field: request.pop(field) for field in fields}


def shaped(document: Document, at: Path, value: Any, shape: Any) -> dict[str, Any] | Remark:
    """Those fields of ``value`` that ``shape`` has and that are not null, or what is wrong there.

    ``at``: path of ``value`` in the document.
    """
    try:
        read: dict[str, Any] = msgspec.to_builtins(msgspec.convert(value, shape))
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        message = f"{problem[:1].lower()}{problem[1:]}: the API server refuses it"
        return document.remark(Level.ERROR, (*at, *steps(value, where.rstrip("`"))), message)
    return read
