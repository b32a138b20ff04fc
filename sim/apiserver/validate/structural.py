"""Structural check of a custom resource's object against its OpenAPI v3 schema."""

from __future__ import annotations

import re
from typing import Any

from dra.common.resources import Obj
from sim.apiserver.refusals.causes import (
    Cause,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
    wrong_type,
)

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
