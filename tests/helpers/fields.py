"""Fields of Kubernetes' objects, as the models of the official Python client have them.

The client's files are read, as to import them takes a second.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dra.common.resources import Obj


def checked(model: str, given: Obj) -> Obj:
    """``given``, whose fields a model of the official client has, such as ``V1PodSpec``.

    Raises:
        TypeError: it lacks one; names it and the nearest that there is.
    """
    known = fields(model)
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise TypeError(f"{model} has no field {name!r}; did you mean {near[0]!r}?")
    return given


_CONTAINER = re.compile(r"(?i:list|dict)[\[(](?:str, )?(.*)[\])]")


def is_known(name: str) -> bool:
    """True if the client has a model of this name."""
    return name in _files()


def unknown_fields(name: str, value: Any, path: str = "") -> Iterator[str]:
    """The paths of the fields that a model has not, as strict decoding names them."""
    if not is_known(name) or not isinstance(value, dict):
        return
    known = fields(name)
    for field, inner in value.items():
        inside = f"{path}.{field}" if path else field
        if field not in known:
            yield inside
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from unknown_fields(_item(known[field]), item, f"{inside}[{index}]")
        elif known[field].lower().startswith("dict") and isinstance(inner, dict):
            for key, item in inner.items():
                yield from unknown_fields(_item(known[field]), item, f"{inside}.{key}")
        else:
            yield from unknown_fields(known[field], inner, inside)


@functools.cache
def fields(name: str) -> Mapping[str, str]:
    """The fields of a model by their names in JSON, with their types.

    Raises:
        KeyError: the client has no such model.
    """
    text = _files()[name].read_text()
    types, names = (_literal(table, text) for table in ("openapi_types", "attribute_map"))
    return {names[attribute]: kind for attribute, kind in types.items()}


def _literal(table: str, text: str) -> dict[str, str]:
    found = re.search(rf"^    {table}\b[^{{]*(\{{.*?^    \}})", text, re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found[1]) if found else {}


@functools.cache
def _files() -> Mapping[str, Path]:
    """The file of each model."""
    package = importlib.util.find_spec("kubernetes")
    if package is None or package.origin is None:
        return {}
    folder = Path(package.origin).with_name("client") / "models"
    index = (folder / "__init__.py").read_text()
    found = re.findall(r"kubernetes\.client\.models\.(\w+) import (\w+)", index)
    return {name: folder / f"{module}.py" for module, name in found}


def _item(kind: str) -> str:
    """The type of a list's items or a map's values; any other type is its own."""
    found = _CONTAINER.fullmatch(kind)
    return found[1] if found else kind
