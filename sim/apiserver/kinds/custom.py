"""Custom resources: their life cycle, and the resource types that a definition makes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.kinds.kind import Environment, Kind, text_at
from sim.apiserver.schema.builtin import METADATA
from sim.apiserver.schema.resources import ResourceType
from sim.apiserver.schema.shapes import ANY, TEXT, Shape
from sim.apiserver.validate.structural import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.apiserver.refusals.causes import Cause


class CustomKind(Kind):
    """Objects of one custom resource: checked and completed by its schema."""

    bumps_generation = True
    unconditional_update = False
    status_carries_metadata = False

    def __init__(self, resource: ResourceType) -> None:
        self._resource = resource
        self.selectable = frozenset(path.lstrip(".") for path in resource.selectable)

    def default(self, obj: Obj, env: Environment) -> None:
        """Sets the schema's defaults."""
        _set_defaults(self._resource.schema, obj)

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks against the schema."""
        return check_schema(self._resource.schema, obj)

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Checks against the schema."""
        return check_schema(self._resource.schema, new)

    def fields(self, obj: Obj) -> Obj:
        """The definition's selectable fields."""
        return {path: text_at(obj, path) for path in self.selectable}


def _set_defaults(schema: Obj, value: Any) -> None:
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                _set_defaults(inner, value[name])
    elif isinstance(value, list):
        for item in value:
            _set_defaults(schema.get("items", {}), item)


def resource_types(definition: Obj) -> list[ResourceType]:
    """Gives what a CustomResourceDefinition serves, one for each served version."""
    spec = definition["spec"]
    names = spec["names"]
    return [
        ResourceType(
            group=spec["group"],
            version=version["name"],
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            shape=_root_shape(_schema(version)),
            subresources=("status",) if "status" in version.get("subresources", {}) else (),
            short_names=tuple(names.get("shortNames", [])),
            categories=tuple(names.get("categories", [])),
            singular=names.get("singular", names["kind"].lower()),
            custom=True,
            schema=_schema(version),
            columns=tuple(version.get("additionalPrinterColumns", [])),
            selectable=tuple(f["jsonPath"] for f in version.get("selectableFields", [])),
        )
        for version in spec["versions"]
        if version.get("served")
    ]


def _schema(version: Obj) -> Obj:
    schema: Obj = at(version, "schema", "openAPIV3Schema", default={})
    return schema


def _root_shape(schema: Obj) -> Shape:
    shape = shape_of(schema)
    if shape.kind != "struct":
        return Shape("struct", {"metadata": METADATA})
    own = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
    return Shape("struct", shape.fields | own, closed=shape.closed, lenient=True)


def shape_of(schema: Obj) -> Shape:
    """The shape that a structural schema describes; types are checked elsewhere."""
    open_ended = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if schema.get("type") == "array":
        item = shape_of(schema.get("items", {}))
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        keys = tuple(schema.get("x-kubernetes-list-map-keys", []))
        return _list_shape(item, list_type, keys)
    if schema.get("type") == "object" or "properties" in schema:
        if "additionalProperties" in schema and "properties" not in schema:
            extra = schema["additionalProperties"]
            item = shape_of(extra) if isinstance(extra, dict) else ANY
            return Shape("map", item=item, atomic=atomic, lenient=True)
        fields = {name: shape_of(inner) for name, inner in schema.get("properties", {}).items()}
        return Shape("struct", fields, closed=not open_ended, atomic=atomic, lenient=True)
    return ANY


def _list_shape(item: Shape, list_type: str, keys: tuple[str, ...]) -> Shape:
    if list_type == "map":
        return Shape("list", item=item, keys=keys, lenient=True)
    is_set, atomic = list_type == "set", list_type == "atomic"
    return Shape("list", item=item, is_set=is_set, atomic=atomic, lenient=True)
