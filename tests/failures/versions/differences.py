"""Differences between values, and between schemas (OpenAPI 3.0, as in definitions of resources)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def refused(value: Any, kind: dict[str, Any], path: str = "") -> Iterator[str]:
    """Reasons why a server with this schema would refuse a value: fields that lack, other words."""
    if isinstance(value, dict):
        yield from (
            f"{path}.{name} lacks" for name in kind.get("required", []) if name not in value
        )
        for name, inner in value.items():
            if name in kind.get("properties", {}):
                yield from refused(inner, kind["properties"][name], f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from refused(each, kind.get("items", {}), f"{path}[]")
    elif "enum" in kind and value not in kind["enum"]:
        yield f"{path} is {value!r}"


def pruned(value: Any, kind: dict[str, Any]) -> Any:
    """The part of a value that a server with this schema keeps."""
    if isinstance(value, dict) and "properties" in kind:
        known = kind["properties"]
        return {name: pruned(inner, known[name]) for name, inner in value.items() if name in known}
    if isinstance(value, list) and "items" in kind:
        return [pruned(each, kind["items"]) for each in value]
    return value


def narrowed(before: dict[str, Any], now: dict[str, Any], path: str = "") -> Iterator[str]:
    """Where a schema takes less than the one before it."""
    if before.get("type") != now.get("type"):
        yield f"{path}: {before.get('type')} became {now.get('type')}"
    yield from (
        f"{path}.{n} is required"
        for n in now.get("required", ())
        if n not in before.get("required", ())
    )
    if "enum" in now:
        yield from (
            f"{path}: no {w!r} any more"
            for w in before.get("enum", ["all"])
            if w not in now["enum"]
        )
    for name, inner in before.get("properties", {}).items():
        if name not in now.get("properties", {}):
            yield f"{path}.{name} is gone"
        else:
            yield from narrowed(inner, now["properties"][name], f"{path}.{name}")
    if "items" in before:
        yield from narrowed(before["items"], now.get("items", {}), f"{path}[]")


def lost(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Values that are not there any more, or are others."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name, inner in before.items():
            if name in now:
                yield from lost(inner, now[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from lost(one, other, f"{path}[{index}]")
    elif before != now:
        yield f"{path}: {before!r}, now {now!r}"


def absent(values: list[Any], kind: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields of a schema that none of ``values`` has."""
    if "items" in kind:
        yield from absent([each for value in values for each in value], kind["items"], f"{path}[]")
    for name, inner in kind.get("properties", {}).items():
        found = [value[name] for value in values if name in value]
        if found:
            yield from absent(found, inner, f"{path}.{name}")
        else:
            yield f"{path}.{name}"
