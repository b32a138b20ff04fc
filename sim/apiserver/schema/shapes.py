"""Shapes of objects: which lists are maps or sets, which values are one unit, which fields exist.

Server-side apply, strategic merge patch and the dropping of unknown fields all need this. A shape
is written by hand for built-in kinds (`builtin_shapes`) and made from the schema for custom
resources. What no shape describes is taken as an open struct of open structs and atomic lists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal


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
