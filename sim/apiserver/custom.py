"""Custom resources: their definitions, their schema, and the life cycle of their objects."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.builtin import METADATA
from sim.apiserver.errors import Cause
from sim.apiserver.fields import (
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
    wrong_type,
)
from sim.apiserver.kinds import Environment, Kind, text_at
from sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, ResourceType
from sim.apiserver.shapes import ANY, TEXT, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.apiserver.errors import Cause
    from sim.apiserver.kinds import Environment
    from sim.apiserver.resources import Catalogue
    from sim.apiserver.store import Change


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def check_schema(schema: Obj, obj: Obj) -> list[Cause]:
    """Checks an object; `metadata` is checked elsewhere."""
    rest = {name: value for name, value in obj.items() if name != "metadata"}
    return _check(schema, rest, "")


def _check(schema: Obj, value: Any, path: str) -> list[Cause]:
    if value is None:
        if schema.get("nullable") or "type" not in schema:
            return []
        return [_wrong_type(path, "null", schema["type"])]
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
        return [] if fits else [_wrong_type(path, value, "integer or string")]
    wanted = schema.get("type")
    if wanted and not _is_a(value, wanted):
        return [_wrong_type(path, value, wanted)]
    causes: list[Cause] = []
    if "enum" in schema and value not in schema["enum"]:
        causes.append(not_supported(path, value, [str(word) for word in schema["enum"]]))
    if isinstance(value, dict):
        causes += _check_object(schema, value, path)
    elif isinstance(value, list):
        causes += _check_array(schema, value, path)
    elif isinstance(value, str):
        causes += _check_text(schema, value, path)
    elif not isinstance(value, bool):
        causes += _check_number(schema, value, path)
    return causes


def _is_a(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[wanted])


def _wrong_type(path: str, value: Any, wanted: str) -> Cause:
    given = next((n for n, types in _TYPES.items() if isinstance(value, types)), "null")
    shown = given if isinstance(value, dict | list) else value
    return wrong_type(path, shown, f'{path} in body must be of type {wanted}: "{given}"')


def _check_object(schema: Obj, value: Obj, path: str) -> list[Cause]:
    causes = [
        required(f"{path}.{name}" if path else name)
        for name in schema.get("required", [])
        if name not in value
    ]
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    for name, inner in value.items():
        inside = f"{path}.{name}" if path else name
        if name in properties:
            causes += _check(properties[name], inner, inside)
        elif isinstance(extra, dict):
            causes += _check(extra, inner, inside)
    if len(value) > schema.get("maxProperties", len(value)):
        causes.append(too_many(path, len(value), schema["maxProperties"]))
    return causes


def _check_array(schema: Obj, value: list[Any], path: str) -> list[Cause]:
    causes: list[Cause] = []
    if len(value) > schema.get("maxItems", len(value)):
        causes.append(too_many(path, len(value), schema["maxItems"]))
    if len(value) < schema.get("minItems", 0):
        text = f"{path} in body should have at least {schema['minItems']} items"
        causes.append(invalid(path, len(value), text))
    for index, item in enumerate(value):
        causes += _check(schema.get("items", {}), item, f"{path}[{index}]")
    keys = schema.get("x-kubernetes-list-map-keys", [])
    seen = []
    for index, item in enumerate(value):
        identity = {key: item.get(key) for key in keys} if isinstance(item, dict) else item
        if schema.get("x-kubernetes-list-type") in ("map", "set") and identity in seen:
            causes.append(duplicate(f"{path}[{index}]", identity))
        seen.append(identity)
    return causes


def _check_text(schema: Obj, value: str, path: str) -> list[Cause]:
    causes = []
    if len(value) > schema.get("maxLength", len(value)):
        causes.append(too_long(path, schema["maxLength"]))
    if len(value) < schema.get("minLength", 0):
        text = f"{path} in body should be at least {schema['minLength']} chars long"
        causes.append(invalid(path, value, text))
    pattern = schema.get("pattern")
    if pattern and not re.search(pattern, value):
        causes.append(invalid(path, value, f"{path} in body should match '{pattern}'"))
    return causes


def _check_number(schema: Obj, value: float, path: str) -> list[Cause]:
    causes = []
    if "minimum" in schema and value < schema["minimum"]:
        text = f"{path} in body should be greater than or equal to {schema['minimum']}"
        causes.append(invalid(path, value, text))
    if "maximum" in schema and value > schema["maximum"]:
        text = f"{path} in body should be less than or equal to {schema['maximum']}"
        causes.append(invalid(path, value, text))
    return causes


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


class Definitions:
    """Serves what definitions define, and marks them as established."""

    def __init__(self, env: Environment, catalogue: Catalogue) -> None:
        self._env = env
        self._catalogue = catalogue
        self._close = env.store.listen(self._see)

    def _see(self, change: Change) -> None:
        if change.family != CUSTOM_RESOURCE_DEFINITIONS.family:
            return
        definition = change.new.copy()
        spec = definition["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        self._catalogue.withdraw(group, plural)
        if change.type == "DELETED":
            self._remove_objects(group, plural)
            return
        for resource in resource_types(definition):
            self._catalogue.serve(resource)
        status = self._status(definition)
        if definition.get("status") != status:
            self._env.store.put(change.family, definition | {"status": status})

    def _remove_objects(self, group: str, plural: str) -> None:
        store = self._env.store
        for record in store.records((group, plural)):
            store.remove((group, plural), record.copy())

    def _status(self, definition: Obj) -> Obj:
        spec = definition["spec"]
        names = spec["names"]
        old = definition.get("status", {})
        stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
        versions = list(dict.fromkeys([*old.get("storedVersions", []), stored]))
        since = {c["type"]: c["lastTransitionTime"] for c in old.get("conditions", [])}
        conditions = [
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": since.get(kind, self._env.timestamp()),
                "reason": reason,
                "message": message,
            }
            for kind, reason, message in (
                ("NamesAccepted", "NoConflicts", "no conflicts found"),
                ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            )
        ]
        return {"acceptedNames": names, "conditions": conditions, "storedVersions": versions}
