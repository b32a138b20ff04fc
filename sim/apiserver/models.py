"""Fields of the built-in kinds, as the models of the official Python client have them.

They describe the client's version of Kubernetes, which may be newer than the one that is served: a
field that came later passes. They take about a second to load, which happens when somebody asks.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.apiserver.resources import ResourceType


_CONTAINER = re.compile(r"(?i:list|dict)[\[(](?:str, )?(.*)[\])]")
_SCALARS: dict[str, type] = {"str": str, "int": int, "bool": bool}


def model_name(resource: ResourceType) -> str:
    """The model of a built-in resource's objects; empty if the client has none."""
    own = f"{resource.version.capitalize()}{resource.kind}"
    group = resource.group.partition(".")[0].capitalize() or "Core"
    return next((name for name in (f"{group}{own}", own) if _find(name) is not None), "")


def drop_unknown(name: str, value: Any, path: str = "") -> Iterator[str]:
    """Removes the fields that a model has not; the paths are those that strict decoding names.

    Raises:
        ValueError: a text, number or boolean is none.
    """
    if (wanted := _SCALARS.get(name)) and not (value is None or type(value) is wanted):
        found = type(value).__name__
        raise ValueError(f"json: cannot unmarshal {found} into Go struct field {path} of {name}")
    model = _find(name)
    if model is None or not isinstance(value, dict):
        return
    fields = {model.attribute_map[field]: kind for field, kind in model.openapi_types.items()}
    for field, inner in list(value.items()):
        inside = f"{path}.{field}" if path else field
        if field not in fields:
            del value[field]
            yield inside
        elif isinstance(inner, list):
            for index, item in enumerate(inner):
                yield from drop_unknown(_item(fields[field]), item, f"{inside}[{index}]")
        elif fields[field].lower().startswith("dict") and isinstance(inner, dict):
            for key, item in inner.items():
                yield from drop_unknown(_item(fields[field]), item, f"{inside}.{key}")
        else:
            yield from drop_unknown(fields[field], inner, inside)


def _find(name: str) -> Any:
    model = getattr(importlib.import_module("kubernetes.client.models"), name, None)
    return model if hasattr(model, "openapi_types") else None


def _item(kind: str) -> str:
    """The type of a list's items or a map's values; any other type is its own."""
    found = _CONTAINER.fullmatch(kind)
    return found[1] if found else kind
