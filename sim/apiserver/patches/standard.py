"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386)."""

from __future__ import annotations

import copy
from typing import Any

from sim.apiserver.refusals import errors

Obj = dict[str, Any]


def merge_patch(target: Any, patch: Any) -> Any:
    """Give `target` changed by a merge patch; null removes, everything but an object replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Give `target` changed by a JSON patch.

    Raises:
        ApiError: 400 for a malformed patch, 422 for one that does not fit this object.
    """
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise errors.bad_request("error decoding patch: a JSON patch is a list of operations")
    document = copy.deepcopy(target)
    for operation in operations:
        document = _apply_operation(document, operation)
    return document


def _apply_operation(document: Any, operation: Obj) -> Any:
    name = operation.get("op")
    path = _tokens(operation.get("path"))
    if name in ("move", "copy"):
        source = _tokens(operation.get("from"))
        value = copy.deepcopy(_find(document, source))
        if name == "move":
            document = _remove(document, source)
        return _add(document, path, value)
    if name == "remove":
        return _remove(document, path)
    if name not in ("add", "replace", "test"):
        raise errors.bad_request(f"error decoding patch: unexpected kind: {name}")
    value = copy.deepcopy(operation.get("value"))
    if name == "add":
        return _add(document, path, value)
    if name == "replace":
        return _replace(document, path, value)
    if not _same(_find(document, path, missing_is_none=True), value):
        raise errors.unprocessable()
    return document


def _same(left: Any, right: Any) -> bool:
    # JSON's true is no number, Python's True is 1.
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _tokens(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise errors.unprocessable()
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(container: list[Any], part: str, *, appending: bool = False) -> int:
    if appending and part == "-":
        return len(container)
    if not part.isdigit() or int(part) > len(container) - (not appending):
        raise errors.unprocessable()
    return int(part)


def _find(document: Any, path: list[str], *, missing_is_none: bool = False) -> Any:
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(document, part)]
        elif missing_is_none and isinstance(document, dict):
            return None
        else:
            raise errors.unprocessable()
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _find(document, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list):
        parent.insert(_index(parent, path[-1], appending=True), value)
    else:
        raise errors.unprocessable()
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    """Set a value; like the real server, also one that was not there."""
    parent = _find(document, path[:-1])
    if path and isinstance(parent, list):
        parent[_index(parent, path[-1])] = value
        return document
    return _add(document, path, value)


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    parent = _find(document, path[:-1])
    if isinstance(parent, dict) and path[-1] in parent:
        del parent[path[-1]]
    elif isinstance(parent, list):
        del parent[_index(parent, path[-1])]
    else:
        raise errors.unprocessable()
    return document
