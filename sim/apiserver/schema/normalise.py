"""Normal form of objects: incoming ones are brought into the form that the API server keeps.

Unknown fields of closed structs go (as they do in typed decoding), and so do nulls and empty lists
and maps of known fields; quantities and times become canonical; a wrong JSON type is a 400.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from dra.common.resources import Obj
from sim.apiserver.refusals import errors
from sim.apiserver.schema.quantities import canonical
from sim.apiserver.schema.shapes import ANY, Shape

_FRACTION = re.compile(r"(\.\d+)?(Z|[+-]\d\d:\d\d)$")


class _MismatchError(Exception):
    """A value of another JSON type than its field."""


def normalise(shape: Shape, obj: Obj, unknown: list[str] | None = None) -> Obj:
    """The object as it is kept; the paths of dropped unknown fields go into `unknown`.

    Raises:
        ApiError: 400, a value has the wrong type.
    """
    dropped: list[str] = [] if unknown is None else unknown
    try:
        kept: Obj = _walk(shape, obj, "", dropped)
    except _MismatchError as mismatch:
        kind, version = obj.get("kind", ""), str(obj.get("apiVersion", "")).rpartition("/")[2]
        raise errors.bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: {mismatch}'
        ) from None
    return kept


def _walk(shape: Shape, value: Any, path: str, unknown: list[str]) -> Any:
    if shape.kind == "any":
        return value
    if shape.kind == "list":
        if not isinstance(value, list):
            if shape.lenient:
                return value
            raise _mismatch(value, path, "[]")
        item = shape.item or ANY
        return [_walk(item, inner, f"{path}[{i}]", unknown) for i, inner in enumerate(value)]
    if shape.kind in ("struct", "map"):
        if not isinstance(value, dict):
            if shape.lenient:
                return value
            raise _mismatch(value, path, "object")
        return _walk_fields(shape, value, path, unknown)
    return _scalar(shape, value, path)


def _walk_fields(shape: Shape, value: Obj, path: str, unknown: list[str]) -> Obj:
    kept: Obj = {}
    for name, inner in value.items():
        inside = f"{path}.{name}" if path else name
        if shape.closed and name not in shape.fields:
            unknown.append(inside)
            continue
        child = shape.child(name)
        if inner is None:
            if shape.lenient and child.lenient:
                kept[name] = None
            continue
        walked = _walk(child, inner, inside, unknown)
        if not child.lenient and walked in ([], {}) and child.kind in ("list", "map"):
            continue
        kept[name] = walked
    return kept


def _scalar(shape: Shape, value: Any, path: str) -> Any:
    if shape.kind == "integer" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if shape.kind == "boolean" and isinstance(value, bool):
        return value
    if shape.kind == "quantity" and isinstance(value, str | int | float):
        try:
            return canonical(str(value))
        except ValueError:
            raise _MismatchError(
                "quantities must match the regular expression "
                "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ) from None
    if isinstance(value, str):
        if shape.kind == "text":
            return value
        if shape.kind in ("time", "micro"):
            return _time(value, micro=shape.kind == "micro")
    raise _mismatch(value, path, {"text": "string", "integer": "int64"}.get(shape.kind, shape.kind))


def _mismatch(value: Any, path: str, wanted: str) -> _MismatchError:
    names = {str: "string", bool: "bool", dict: "object", list: "array"}
    given = names.get(type(value), "number")
    return _MismatchError(
        f"json: cannot unmarshal {given} into Go struct field {path} of type {wanted}"
    )


def _time(text: str, *, micro: bool) -> str:
    try:
        parsed = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise _MismatchError(
            f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse'
        ) from None
    if not _FRACTION.search(text):
        raise _MismatchError(f'parsing time "{text}": cannot parse "" as "Z07:00"')
    return rfc3339(parsed, micro=micro)


def rfc3339(moment: datetime, *, micro: bool = False) -> str:
    """Writes a moment as metav1.Time (whole seconds) or MicroTime."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
