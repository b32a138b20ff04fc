"""Fields of the built-in kinds, as the models of the official Python client have them.

They describe the client's version of Kubernetes, which may be newer than the one that is served: a
field that came later passes. The client's files are read, as to import them takes a second.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sim.apiserver.resources import ResourceType


_CONTAINER = re.compile(r"(?i:list|dict)[\[(](?:str, )?(.*)[\])]")
_SCALARS: dict[str, type] = {"str": str, "int": int, "bool": bool}


def model_name(resource: ResourceType) -> str:
    """The model of a built-in resource's objects; empty if the client has none."""
    own = f"{resource.version.capitalize()}{resource.kind}"
    group = resource.group.partition(".")[0].capitalize() or "Core"
    return next(filter(is_known, (f"{group}{own}", own)), "")


def is_known(name: str) -> bool:
    """True if the client has a model of this name."""
    return name in _files()


def drop_unknown(name: str, value: Any, path: str = "") -> Iterator[str]:
    """Removes the fields that a model has not; the paths are those that strict decoding names.

    Raises:
        ValueError: a text, number or boolean is none.
    """
    if (wanted := _SCALARS.get(name)) and not (value is None or type(value) is wanted):
        found = type(value).__name__
        raise ValueError(f"json: cannot unmarshal {found} into Go struct field {path} of {name}")
    if not is_known(name) or not isinstance(value, dict):
        return
    known = fields(name)
    for field, inner in list(value.items()):
        inside = f"{path}.{field}" if path else field
        if field not in known:
            del value[field]
            yield inside
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from drop_unknown(_item(known[field]), item, f"{inside}[{index}]")
        elif known[field].lower().startswith("dict") and isinstance(inner, dict):
            for key, item in inner.items():
                yield from drop_unknown(_item(known[field]), item, f"{inside}.{key}")
        else:
            yield from drop_unknown(known[field], inner, inside)


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
