"""Tables: what ``kubectl get`` prints, from columns of the built-in kinds or of a definition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.forms.columns import AGE, BUILTIN, NAME, Column

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import ResourceType

_META = "meta.k8s.io/v1"


def metadata_only(obj: Obj) -> Obj:
    """The PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": obj["metadata"]}


def table(
    resource: ResourceType, objects: Sequence[Obj], now: datetime, *, include: str = "Metadata"
) -> Obj:
    """The Table of some objects; the list's metadata is the caller's to set."""
    columns = _columns(resource)
    rows = []
    for obj in objects:
        entry: Obj = {"cells": [_cell(column, obj, now) for column in columns]}
        if include != "None":
            entry["object"] = obj if include == "Object" else metadata_only(obj)
        rows.append(entry)
    definitions = [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": "",
            "priority": int(column.wide),
        }
        for column in columns
    ]
    head: Obj = {"kind": "Table", "apiVersion": _META, "metadata": {}}
    return head | {"columnDefinitions": definitions, "rows": rows}


def _columns(resource: ResourceType) -> tuple[Column, ...]:
    if not resource.custom:
        return BUILTIN.get(resource.plural, (NAME, AGE))
    declared = tuple(
        Column(
            column["name"],
            column["jsonPath"],
            column["type"],
            column.get("format", ""),
            otherwise=None,
            wide=column.get("priority", 0) > 0,
        )
        for column in resource.columns
    )
    return (NAME, *(declared or (AGE,)))


def _cell(column: Column, obj: Obj, now: datetime) -> Any:
    if isinstance(column.source, str):
        found = json_path(obj, column.source)
        value = ",".join(map(str, found)) if len(found) > 1 else next(iter(found), None)
    else:
        value = column.source(obj)
    if value in (None, ""):
        return column.otherwise
    if column.type == "date":
        return age(value, now)
    if column.type == "string" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def age(since: str, now: datetime) -> str:
    """The time since a moment, as kubectl writes it: ``45s``, ``5m10s``, ``3h``, ``2d``."""
    seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    steps = ((86400, "d", 3600, "h", 8), (3600, "h", 60, "m", 8), (60, "m", 1, "s", 10))
    for size, unit, smaller, small_unit, limit in steps:
        count, rest = divmod(seconds, size)
        if (count >= 1 and size != 60) or count >= 2:  # noqa: PLR2004 - below 2 minutes in seconds
            part = rest // smaller
            more = f"{part}{small_unit}" if count < limit and part else ""
            return f"{count}{unit}{more}"
    return f"{seconds}s"


_STEP = re.compile(
    r"\.([A-Za-z_][\w-]*|\*)|\[(\*|-?\d+)\]|\['([^']+)'\]|\[\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]"
)


def json_path(obj: Obj, path: str) -> list[Any]:
    """The values that a column's path finds: fields, indexes, ``[*]`` and ``[?(@.a=="b")]``."""
    found: list[Any] = [obj]
    for name, index, quoted, field, wanted in _STEP.findall(path.replace("\\.", "\0")):
        key = (name or quoted).replace("\0", ".")
        following: list[Any] = []
        for value in found:
            if field and isinstance(value, list):
                following += [item for item in value if str(item.get(field, "")) == wanted]
            elif index == "*" or key == "*":
                inner = value.values() if isinstance(value, dict) else value
                following += list(inner or [])
            elif index and isinstance(value, list) and -len(value) <= int(index) < len(value):
                following.append(value[int(index)])
            elif key and isinstance(value, dict) and key in value:
                following.append(value[key])
        found = following
    return [value for value in found if value is not None]
