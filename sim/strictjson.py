"""JSON files of people, decoded strictly: a refusal names file, field and allowed values."""

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")


class ContentError(ValueError):
    """A file whose content cannot be used; the message names file, field and allowed values."""


def decode(path: Path, kind: type[T], *, what: str) -> T:
    """The value in the file at ``path``; ``what`` says in words what the file is of.

    Raises:
        ContentError: no JSON, or not of this type.
        OSError: the file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ContentError(f"{path} is no file of {what}: {_words(str(error), kind)}") from error


def _words(message: str, kind: type) -> str:
    """A refusal of msgspec (``<problem> - at `$.a[0].b```) with what is allowed there."""
    problem, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").removeprefix(".")
    if allowed := _allowed(inspect.type_info(kind), path, unknown="unknown field" in problem):
        problem = f"{problem}; allowed are: {', '.join(allowed)}"
    return f"{path}: {problem}" if path else problem


def _allowed(found: inspect.Type, path: str, *, unknown: bool) -> list[str]:
    """The words that may stand at a path, or the fields where one is ``unknown``; else none."""
    for name in path.split(".") if path else ():
        fields = found.fields if isinstance(found, inspect.StructType) else ()
        found = next((f.type for f in fields if f.encode_name == name.partition("[")[0]), found)
        if "[" in name and isinstance(found, inspect.VarTupleType):
            found = found.item_type
    if isinstance(found, inspect.StructType) and unknown:
        return [field.encode_name for field in found.fields]
    return [str(each) for each in found.values] if isinstance(found, inspect.LiteralType) else []
