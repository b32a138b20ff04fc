"""Shapes of objects: which fields have a form of their own, and how lists are merged.

What a shape does not describe passes as it is. Quantities are kept in their canonical form, nulls
and empty lists are not kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
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
    `merge_key` is the key of strategic merge patch ("" = the list is replaced).
    """

    kind: Literal["struct", "map", "list", "quantity", "any"]
    fields: dict[str, Shape] = field(default_factory=dict)
    item: Shape | None = None
    closed: bool = False
    atomic: bool = False
    keys: tuple[str, ...] = ()
    is_set: bool = False
    merge_key: str = ""
    defaults: dict[str, Any] = field(default_factory=dict)

    def child(self, name: str) -> Shape:
        """The shape of a field of a struct or a value of a map."""
        if self.kind == "map" and self.item is not None:
            return self.item
        return self.fields.get(name, ANY)


ANY = Shape("any")
QUANTITY = Shape("quantity")


def struct(*, atomic: bool = False, **fields: Shape) -> Shape:
    """Describes some fields of a struct; others pass as they are."""
    return Shape("struct", fields, atomic=atomic)


def map_of(item: Shape, *, atomic: bool = False) -> Shape:
    """Describes a map from text to `item`."""
    return Shape("map", item=item, atomic=atomic)


def list_of(item: Shape = ANY) -> Shape:
    """Describes a list that has one owner and is replaced as a whole."""
    return Shape("list", item=item, atomic=True)


def set_of(item: Shape = ANY) -> Shape:
    """Describes a list of distinct scalars, to which strategic merge patch adds."""
    return Shape("list", item=item, is_set=True, merge_key="*")


def keyed(item: Shape, *keys: str, merge: bool = True, **defaults: Any) -> Shape:
    """Describes a list that is a map by `keys`; strategic merge patch uses the first of them."""
    merge_key = keys[0] if merge else ""
    return Shape("list", item=item, keys=keys, merge_key=merge_key, defaults=defaults)


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
    known = shape.defaults | (element if isinstance(element, dict) else {})
    return "k:" + _compact({key: known[key] for key in sorted(shape.keys) if key in known})


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def children(shape: Shape, value: Any) -> list[tuple[str, Shape, Any]]:
    """(path element, shape, value) of what is inside a value that is not a leaf."""
    if isinstance(value, dict):
        return [("f:" + name, shape.child(name), inner) for name, inner in value.items()]
    item = shape.item or ANY
    return [(element_id(shape, element), item, element) for element in value]


_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_EXPONENT = re.compile(r"[eE][+-]?\d+$")
_BINARY_FLOOR = 1024


def canonical(text: str) -> str:
    """A quantity as the API server writes it back.

    Raises:
        ValueError: the text is no quantity.
    """
    value = parse_quantity(text)
    if value == 0:
        return "0"
    if text.endswith("i") and abs(value) >= _BINARY_FLOOR and value.denominator == 1:
        number, power = value.numerator, 0
        while number % _BINARY_FLOOR == 0 and power < len(_BINARY) - 1:
            number, power = number // _BINARY_FLOOR, power + 1
        return str(number) + _BINARY[power]
    exponent, number = -9, int(value * 10**9)
    while number % 1000 == 0 and exponent < _DECIMAL["E"]:
        number, exponent = number // 1000, exponent + 3
    if _EXPONENT.search(text):
        return f"{number}e{exponent}" if exponent else str(number)
    return str(number) + next(name for name, power in _DECIMAL.items() if power == exponent)


def normalise(shape: Shape, obj: Obj, unknown: list[str], *, keeps_empty: bool = False) -> Obj:
    """The object as it is kept; the paths of dropped unknown fields go into `unknown`.

    Described lists and maps that are empty are dropped, unless it `keeps_empty` ones, as custom
    resources do.

    Raises:
        ApiError: 400, a quantity is none.
    """
    try:
        kept: Obj = _walk(shape, obj, "", (unknown, keeps_empty))
    except ValueError as malformed:
        kind, version = obj.get("kind", ""), str(obj.get("apiVersion", "")).rpartition("/")[2]
        text = f'{kind} in version "{version}" cannot be handled as a {kind}: {malformed}'
        raise errors.bad_request(text) from None
    return kept


def _walk(shape: Shape, value: Any, path: str, how: tuple[list[str], bool]) -> Any:
    if shape.kind == "quantity":
        return canonical(str(value))
    if shape.kind == "list" and isinstance(value, list):
        item = shape.item or ANY
        return [_walk(item, inner, f"{path}[{at}]", how) for at, inner in enumerate(value)]
    if shape.kind not in ("struct", "map") or not isinstance(value, dict):
        return value
    kept: Obj = {}
    unknown, keeps_empty = how
    for name, inner in value.items():
        inside = f"{path}.{name}" if path else name
        child = shape.child(name)
        if shape.closed and name not in shape.fields:
            unknown.append(inside)
        elif inner is not None:
            walked = _walk(child, inner, inside, how)
            if walked not in ([], {}) or keeps_empty or child.kind not in ("list", "map"):
                kept[name] = walked
    return kept
