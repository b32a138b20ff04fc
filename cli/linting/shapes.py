"""Shapes of what rules read of pods, claims and classes; the API server refuses all others.

A field may be null, which counts as absent; fields that no rule reads are not looked at.
"""

from __future__ import annotations

import re
from types import GenericAlias
from typing import Any

import msgspec

from api.decoding import decodable
from cli.linting.documents import Document, Level, Path, Remark


def _shape(**fields: Any) -> Any:
    """The type of a mapping with these fields, each called as in Kubernetes, or null."""
    nullable = [(name, kind | None, None) for name, kind in fields.items()]
    return msgspec.defstruct("Shape", nullable, rename="camel")


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

_SELECTORS = _list(_shape(cel=msgspec.defstruct("Cel", [("expression", str)])))
_CONFIG = _list(_shape(requests=_TEXTS, opaque=_shape(driver=str, parameters=dict[str, Any])))
_EXACT: dict[str, Any] = {
    "name": str,
    "device_class_name": str,
    "selectors": _SELECTORS,
    "count": int,
    "allocation_mode": str,
    "admin_access": bool,
    "tolerations": list[dict[str, Any]],
    "capacity": _shape(requests=_AMOUNTS),
}
_BODY = _shape(**_EXACT)
_REQUESTS = _list(_shape(**_EXACT, exactly=_BODY, first_available=_list(_BODY)))
_CONSTRAINTS = _list(_shape(requests=_TEXTS, match_attribute=str, distinct_attribute=str))
DEVICES = decodable(_shape(requests=_REQUESTS, constraints=_CONSTRAINTS, config=_CONFIG))
"""``spec.devices`` of a claim."""

_CLASS_SPEC = _shape(selectors=_SELECTORS, config=_CONFIG, extended_resource_name=str)
CLASS = decodable(_shape(metadata=_METADATA, spec=_CLASS_SPEC))
"""A DeviceClass."""

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
