"""Objects as JSON, of which the parts that are kept are decoded.

A function ``keep`` reads an object's JSON by a type of msgspec that has the fields which are read,
so that others cost nothing, whatever users write into them. Parts that may be large stay text in
its result, to be bounded by their bytes, and shared between objects, before they are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any, TypedDict

import msgspec

from dra.common.resources import Obj

NAME_LENGTH = 254
"""One more than the longest name: a longer text names nothing."""

ABSENT = msgspec.Raw()
"""Default of a field that stays text: encoding omits this very value."""

_NULL = b"null"


def shape(fields: Any) -> Any:
    """A type by which msgspec decodes an object to a dict that has no other ``fields``.

    ``fields``: by name the type of each. A dict of these stands for an object within, a list of one
    for a list. An object may be null.
    """
    if isinstance(fields, list):
        return GenericAlias(list, (shape(fields[0]),)) | None
    if not isinstance(fields, dict):
        return fields
    types = {name: shape(each) for name, each in fields.items()}
    return TypedDict("Shape", types, total=False) | None  # type: ignore[operator]


class Part(msgspec.Struct, rename="camel", omit_defaults=True):
    """Part of an object. Fields that are null are as good as absent."""


def text_of(raw: msgspec.Raw) -> bytes:
    """The JSON of a part; empty if it is absent or null."""
    text = bytes(raw)
    return b"" if text == _NULL else text


def decode(text: bytes) -> Any:
    """Value of a JSON text."""
    return msgspec.json.decode(text)


def present(values: Mapping[str, Any]) -> Obj:
    """Those of ``values`` that say something: neither None nor empty."""
    return {key: value for key, value in values.items() if value is not None and value != b""}


def decoded(part: Any, make: Callable[[bytes], Any] = decode) -> Any:
    """``part`` with values in the place of texts, each as ``make`` returns it."""
    if type(part) is bytes:
        return make(part)
    if type(part) is dict:
        return {key: decoded(value, make) for key, value in part.items()}
    return part


def cut(value: Any) -> Any:
    """``value`` with no more characters than ``NAME_LENGTH`` in any of its texts."""
    if isinstance(value, str):
        return value if len(value) <= NAME_LENGTH else value[:NAME_LENGTH]
    if isinstance(value, dict):
        return {key: cut(each) for key, each in value.items()}
    return [*map(cut, value)] if isinstance(value, list) else value


class Owner(Part):
    """Reference to an owner."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


def controllers(owners: list[Owner] | None, *, names: bool = False) -> list[Obj]:
    """The controlling owners, with their names if these are wanted."""
    found = []
    for owner in owners or ():
        if owner.controller:
            kept: Obj = {"kind": cut(owner.kind), "controller": True, "uid": cut(owner.uid)}
            found.append({**kept, "name": cut(owner.name)} if names else kept)
    return found
