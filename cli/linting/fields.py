"""Fields of manifests with any content: an unexpected value counts as absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """The mapping at ``keys`` below ``value``; empty where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def entries(value: Any, *keys: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Index and content of the mappings in the list at ``keys`` below ``value``."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield index, item


def text(value: Any, key: str) -> str:
    """The text at ``key``; empty where there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return str(found) if found is not None else ""
