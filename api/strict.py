"""Strict decoding by msgspec, with errors that name the field and what it takes."""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from api.errors import InvalidObjectError

_MOST: Final = 200
"""Characters of what a user wrote that a message has room for."""

T = TypeVar("T", bound=msgspec.Struct)

_FIELD_PROBLEMS: Final = {
    "unknown field `": "unknown field",
    "missing required field `": "the field is missing",
}


def convert(parameters: dict[str, Any], wanted: type[T], kind: str) -> T:
    """``parameters`` as ``wanted``; ``kind`` is what the user calls the object.

    Raises:
        InvalidObjectError: unknown or missing field, or bad value; names the field, and the words
            that it takes.
    """
    try:
        return msgspec.convert(parameters, wanted)
    except msgspec.ValidationError as error:
        path, problem = _split(str(error))
        if allowed := _allowed(path, wanted):
            problem = f"{problem}; allowed are: {', '.join(allowed)}"
        raise InvalidObjectError(kind, path, problem) from error


def _split(message: str) -> tuple[str, str]:
    """Msgspec says ``<problem> - at `$.a.b```.

    A field that is unknown or missing stands in the problem, with its holder as the path.
    """
    problem, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").removeprefix(".")
    for marker, told in _FIELD_PROBLEMS.items():
        if marker in problem:
            field = problem.partition(marker)[2].rstrip("`")
            path = f"{path}.{field}" if path else field
            problem = told
    return path[:_MOST], problem.replace("`", "'")[:_MOST]


@functools.cache
def _known(kind: type[msgspec.Struct]) -> inspect.Type:
    """Fields of a kind, of which there are few: to find them out takes half a millisecond."""
    return inspect.type_info(kind)


def _allowed(path: str, kind: type[msgspec.Struct]) -> list[str]:
    """The words that the field at a path takes; none where it takes no words of a list."""
    found = _known(kind)
    for name in path.split("."):
        if isinstance(found, inspect.UnionType):
            found = next(t for t in found.types if not isinstance(t, inspect.NoneType))
        fields = found.fields if isinstance(found, inspect.StructType) else ()
        found = next((f.type for f in fields if f.encode_name == name.partition("[")[0]), found)
        if "[" in name and isinstance(found, inspect.VarTupleType):
            found = found.item_type
    return [str(each) for each in found.values] if isinstance(found, inspect.LiteralType) else []
