"""Models of the built-in kinds in the official Python client: every field, its type, its meaning.

They describe the client's version of Kubernetes, which may be newer than the one that is served: a
field that came later passes. They take about a second to load, which happens when somebody asks.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sim.apiserver.resources import ResourceType


METADATA = "V1ObjectMeta"
_TYPES: dict[str, Obj] = {
    "str": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "datetime": {"type": "string", "format": "date-time"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {"x-kubernetes-preserve-unknown-fields": True},
}
_CONTAINER = re.compile(r"(?i:list|dict)[\[(](?:str, )?(.*)[\])]")


def model_name(resource: ResourceType) -> str:
    """The model of a built-in resource's objects; empty if the client has none."""
    own = f"{resource.version.capitalize()}{resource.kind}"
    group = resource.group.partition(".")[0].capitalize() or "Core"
    return next((name for name in (f"{group}{own}", own) if _find(name) is not None), "")


def schemas(names: Iterable[str]) -> dict[str, Obj]:
    """OpenAPI schemas of models, and of all that these refer to, by name."""
    found: dict[str, Obj] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and (model := _find(name)) is not None:
            found[name] = _schema(model)
            waiting += [_item(kind) for kind in model.openapi_types.values()]
    return found


def reference(name: str) -> Obj:
    """A reference to a schema: OpenAPI reads a description beside it only within "allOf"."""
    return {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}


def drop_unknown(name: str, value: Any, path: str = "") -> Iterator[str]:
    """Removes the fields that a model has not; the paths are those that strict decoding names."""
    model = _find(name)
    if model is None or not isinstance(value, dict):
        return
    fields = {model.attribute_map[field]: kind for field, kind in model.openapi_types.items()}
    for field, inner in list(value.items()):
        inside = f"{path}.{field}" if path else field
        if field not in fields:
            del value[field]
            yield inside
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from drop_unknown(_item(fields[field]), item, f"{inside}[{index}]")
        elif fields[field].lower().startswith("dict") and isinstance(inner, dict):
            for key, item in inner.items():
                yield from drop_unknown(_item(fields[field]), item, f"{inside}.{key}")
        else:
            yield from drop_unknown(fields[field], inner, inside)


def _find(name: str) -> Any:
    model = getattr(importlib.import_module("kubernetes.client.models"), name, None)
    return model if hasattr(model, "openapi_types") else None


def _item(kind: str) -> str:
    """The type of a list's items or a map's values; any other type is its own."""
    found = _CONTAINER.fullmatch(kind)
    return found[1] if found else kind


def _schema(model: Any) -> Obj:
    properties = {}
    for field, kind in model.openapi_types.items():
        described = getattr(model.model_fields.get(field), "description", None)
        more = {"description": described} if described else {}
        properties[model.attribute_map[field]] = _property(kind) | more
    text = " ".join((model.__doc__ or "").partition("Attributes:")[0].split())
    return {"type": "object", "description": text, "properties": properties}


def _property(kind: str) -> Obj:
    item = _item(kind)
    if item == kind:
        return _TYPES.get(kind) or reference(kind)
    if kind.lower().startswith("list"):
        return {"type": "array", "items": _property(item)}
    return {"type": "object", "additionalProperties": _property(item)}
