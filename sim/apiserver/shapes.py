"""Shapes of objects, and the form in which objects are kept."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from dra.common.quantity import parse_quantity
from dra.common.resources import Obj
from sim.apiserver import errors


@dataclass(frozen=True, slots=True)
class Shape:
    """Known shape of one value.

    `fields` are those of a struct, `item` the shape of a list's elements or a map's values. A
    `closed` struct loses every field that is not in `fields`. An `atomic` value has one owner and
    is compared as a whole. A list with `keys` is a map by those keys; `defaults` complete them.
    `merge_key` is the key of strategic merge patch ("" = the list is replaced). A `lenient` value
    keeps nulls and wrong types: a custom resource's schema judges them later.
    """

    kind: Literal[
        "struct", "map", "list", "text", "integer", "boolean", "quantity", "time", "micro", "any"
    ]
    fields: dict[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    closed: bool = False
    atomic: bool = False
    keys: tuple[str, ...] = ()
    is_set: bool = False
    merge_key: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)
    lenient: bool = False

    def child(self, name: str) -> Shape:
        """The shape of a field of a struct or a value of a map."""
        if self.kind == "map" and self.item is not None:
            return self.item
        return self.fields.get(name, ANY)


ANY = Shape("any")
TEXT = Shape("text")
INTEGER = Shape("integer")
BOOLEAN = Shape("boolean")
QUANTITY = Shape("quantity")
TIME = Shape("time")
MICRO_TIME = Shape("micro")


def struct(*, atomic: bool = False, **fields: Shape) -> Shape:
    """Describes a struct completely: other fields are dropped."""
    return Shape("struct", fields, closed=True, atomic=atomic)


def partial(*, atomic: bool = False, **fields: Shape) -> Shape:
    """Describes some fields of a struct; others pass as they are."""
    return Shape("struct", fields, atomic=atomic)


def map_of(item: Shape, *, atomic: bool = False) -> Shape:
    """Describes a map from text to `item`."""
    return Shape("map", item=item, atomic=atomic)


def list_of(item: Shape = ANY) -> Shape:
    """Describes a list that has one owner and is replaced as a whole."""
    return Shape("list", item=item, atomic=True)


def set_of(item: Shape = TEXT, *, merge: bool = False) -> Shape:
    """Describes a list of distinct scalars; `merge`: strategic merge patch adds to it."""
    return Shape("list", item=item, is_set=True, merge_key="*" if merge else "")


def keyed(
    item: Shape, *keys: str, merge: bool = True, defaults: dict[str, Any] | None = None
) -> Shape:
    """Describes a list that is a map by `keys`; strategic merge patch uses the first of them."""
    return Shape(
        "list", item=item, keys=keys, merge_key=keys[0] if merge else "", defaults=defaults or {}
    )


def is_leaf(shape: Shape, value: Any) -> bool:
    """True if a value is owned and compared as one unit."""
    if shape.atomic:
        return True
    if isinstance(value, dict):
        return False
    return not (isinstance(value, list) and (shape.keys or shape.is_set))


def element_id(shape: Shape, element: Any) -> str:
    """The path element of a list's item, as FieldsV1 writes it: `k:{...}` or `v:...`."""
    if shape.is_set:
        return "v:" + _compact(element)
    found = {}
    for key in sorted(shape.keys):
        if isinstance(element, dict) and key in element:
            found[key] = element[key]
        elif key in shape.defaults:
            found[key] = shape.defaults[key]
    return "k:" + _compact(found)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def children(shape: Shape, value: Any) -> list[tuple[str, Shape, Any]]:
    """(path element, shape, value) of what is inside a value that is not a leaf."""
    if isinstance(value, dict):
        return [("f:" + name, shape.child(name), inner) for name, inner in value.items()]
    item = shape.item or ANY
    return [(element_id(shape, element), item, element) for element in value]


_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX = re.compile(r"[KMGTPE]i$|[numkMGTPE]$|[eE][+-]?\d+$")
_BINARY_FLOOR = 1024


def canonical(text: str) -> str:
    """A quantity as the API server writes it back.

    Raises:
        ValueError: the text is no quantity.
    """
    value = parse_quantity(text)
    found = _SUFFIX.search(text)
    suffix = found[0] if found else ""
    if value == 0:
        return "0"
    if suffix in _BINARY and abs(value) >= _BINARY_FLOOR and value.denominator == 1:
        return _scaled_binary(value.numerator)
    exponent = -9
    number = int(value * 10**9)
    while number % 1000 == 0 and exponent < _DECIMAL["E"]:
        number //= 1000
        exponent += 3
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return f"{number}e{exponent}" if exponent else str(number)
    return str(number) + next(name for name, power in _DECIMAL.items() if power == exponent)


def _scaled_binary(number: int) -> str:
    power = 0
    while number % 1024 == 0 and power < _BINARY["Ei"]:
        number //= 1024
        power += 1
    return str(number) + next((name for name, at in _BINARY.items() if at == power), "")


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
