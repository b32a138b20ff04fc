"""Custom resources: their definitions, their schema, and the life cycle of their objects."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.errors import Cause, invalid, not_supported, required, too_many
from sim.apiserver.kinds import Environment, Kind
from sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, METADATA, ResourceType
from sim.apiserver.shapes import ANY, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.apiserver.resources import Catalogue
    from sim.apiserver.store import Change


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "number": _is_number,
}
Report = Callable[[str, Any, Any], Cause]
"""Path, value and bound to the cause that says what is wrong."""


def _says(words: str) -> Report:
    return lambda path, value, bound: invalid(path, value, f"{path} in body {words.format(bound)}")


def _has_too_many(path: str, value: Any, bound: int) -> Cause:
    return too_many(path, len(value), bound)


def _is_too_long(path: str, _: Any, bound: int) -> Cause:
    return Cause("FieldValueTooLong", path, None, f"may not be more than {bound} bytes")


# Keyword of the schema: is it broken by the value, and the cause then.
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], Report]] = {
    "minItems": (lambda value, least: len(value) < least, _says("should have at least {} items")),
    "minLength": (
        lambda value, least: len(value) < least,
        _says("should be at least {} chars long"),
    ),
    "pattern": (lambda value, text: not re.search(text, value), _says("should match '{}'")),
    "minimum": (lambda value, least: value < least, _says("should be at least {}")),
    "maximum": (lambda value, most: value > most, _says("should be at most {}")),
    "maxItems": (lambda value, most: len(value) > most, _has_too_many),
    "maxProperties": (lambda value, most: len(value) > most, _has_too_many),
    "maxLength": (lambda value, most: len(value) > most, _is_too_long),
}


def _check(schema: Obj, value: Any, path: str) -> Iterator[Cause]:
    """The causes for which a value is not as the schema wants it."""
    wanted = schema.get("type")
    if wanted and not schema.get("x-kubernetes-int-or-string") and not _TYPES[wanted](value):
        given = next(name for name, fits in _TYPES.items() if fits(value))
        text = f'{path} in body must be of type {wanted}: "{given}"'
        yield Cause("FieldValueTypeInvalid", path, given, text)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield not_supported(path, value, map(str, schema["enum"]))
    for keyword, (is_broken, cause) in _BOUNDS.items():
        if keyword in schema and is_broken(value, schema[keyword]):
            yield cause(path, value, schema[keyword])
    if isinstance(value, dict):
        yield from _check_object(schema, value, f"{path}." if path else "")
    elif isinstance(value, list):
        yield from _check_array(schema, value, path)


def _check_object(schema: Obj, value: Obj, prefix: str) -> Iterator[Cause]:
    for name in schema.get("required", []):
        if name not in value:
            yield required(f"{prefix}{name}")
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for name, inner in value.items():
        found = properties.get(name, extra)
        if isinstance(found, dict):
            yield from _check(found, inner, f"{prefix}{name}")


def _check_array(schema: Obj, value: list[Any], path: str) -> Iterator[Cause]:
    keys = schema.get("x-kubernetes-list-map-keys", [])
    distinct = schema.get("x-kubernetes-list-type") in ("map", "set")
    seen = []
    for index, item in enumerate(value):
        yield from _check(schema.get("items", {}), item, f"{path}[{index}]")
        identity = {key: item.get(key) for key in keys} if isinstance(item, dict) else item
        if distinct and identity in seen:
            yield Cause("FieldValueDuplicate", f"{path}[{index}]", identity)
        seen.append(identity)


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


def custom_kind(resource: ResourceType) -> Kind:
    """The life cycle of a custom resource's objects: checked and completed by its schema."""
    schema = resource.schema

    def check(obj: Obj, _: Obj | None) -> Iterator[Cause]:
        return _check(schema, {k: v for k, v in obj.items() if k != "metadata"}, "")

    return Kind(
        default=lambda obj, _: _set_defaults(schema, obj),
        check=check,
        check_status=check,
        selectable=tuple(path.lstrip(".") for path in resource.selectable),
        bumps_generation=True,
        unconditional_update=False,
        status_carries_metadata=False,
    )


def _resource_types(definition: Obj) -> Iterator[ResourceType]:
    """Resource types of a CustomResourceDefinition, one for each served version."""
    spec = definition["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        schema = at(version, "schema", "openAPIV3Schema", default={})
        if version.get("served"):
            yield ResourceType(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                shape=_root_shape(schema),
                subresources=("status",) if "status" in version.get("subresources", {}) else (),
                short_names=tuple(names.get("shortNames", [])),
                categories=tuple(names.get("categories", [])),
                singular=names["singular"],
                custom=True,
                schema=schema,
                columns=tuple(version.get("additionalPrinterColumns", [])),
                selectable=tuple(f["jsonPath"] for f in version.get("selectableFields", [])),
            )


def _root_shape(schema: Obj) -> Shape:
    shape = _shape_of(schema)
    own = {"apiVersion": ANY, "kind": ANY, "metadata": METADATA}
    return Shape("struct", shape.fields | own, closed=shape.closed)


def _shape_of(schema: Obj) -> Shape:
    """The shape that a structural schema describes; types are checked elsewhere."""
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if schema.get("type") == "array":
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        return Shape(
            "list",
            item=_shape_of(schema.get("items", {})),
            keys=tuple(schema.get("x-kubernetes-list-map-keys", [])) if list_type == "map" else (),
            is_set=list_type == "set",
            atomic=list_type == "atomic",
        )
    if schema.get("type") != "object":
        return ANY
    extra = schema.get("additionalProperties")
    if extra and "properties" not in schema:
        item = _shape_of(extra) if isinstance(extra, dict) else ANY
        return Shape("map", item=item, atomic=atomic)
    fields = {name: _shape_of(inner) for name, inner in schema.get("properties", {}).items()}
    closed = not schema.get("x-kubernetes-preserve-unknown-fields")
    return Shape("struct", fields, closed=closed, atomic=atomic)


def serve_definitions(env: Environment, catalogue: Catalogue) -> None:
    """Serves what definitions define from now on, and marks them as established."""
    store = env.store

    def see(change: Change) -> None:
        if change.family != CUSTOM_RESOURCE_DEFINITIONS.family:
            return
        definition = change.new.copy()
        spec = definition["spec"]
        family = spec["group"], spec["names"]["plural"]
        catalogue.withdraw(family)
        if change.type == "DELETED":
            for record in store.records(family):
                store.remove(family, record.copy())
            return
        for resource in _resource_types(definition):
            catalogue.serve(resource)
        status = _established(definition, env.timestamp())
        if definition.get("status") != status:
            store.put(change.family, definition | {"status": status})

    store.listen(see)


def _established(definition: Obj, now: str) -> Obj:
    spec, old = definition["spec"], definition.get("status", {})
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    since = {c["type"]: c["lastTransitionTime"] for c in old.get("conditions", [])}
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": since.get(kind, now),
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    versions = list(dict.fromkeys([*old.get("storedVersions", []), stored]))
    names = spec["names"]
    return {"acceptedNames": names, "conditions": conditions, "storedVersions": versions}
