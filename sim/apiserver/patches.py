"""Patches: JSON patch (RFC 6902) by the library, merge patch (RFC 7386), strategic merge patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonpatch
from jsonpointer import JsonPointer, JsonPointerException

from sim.apiserver import errors
from sim.apiserver.shapes import ANY

if TYPE_CHECKING:
    from sim.apiserver.shapes import Shape


def merge_patch(target: Any, patch: Any) -> Any:
    """The target changed by a merge patch; null removes, everything but an object replaces."""
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
    """The target changed by a JSON patch; the target itself stays.

    Raises:
        ApiError: 400 for a malformed patch, 422 for one that does not fit this object.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("error decoding patch: a JSON patch is a list of operations")
    try:
        for operation in operations:
            if not _tests_for_nothing(target, operation):
                target = jsonpatch.JsonPatch([operation]).apply(target)
    except (jsonpatch.InvalidJsonPatch, TypeError) as malformed:
        raise errors.bad_request(f"error decoding patch: {malformed}") from None
    except (jsonpatch.JsonPatchException, JsonPointerException):
        raise errors.unprocessable() from None
    return target


def _tests_for_nothing(target: Any, operation: Any) -> bool:
    """True for a test for null of a field that is missing, which the API server passes.

    So does its library (test in patch.go of evanphx/json-patch v4).
    """
    if not isinstance(operation, dict) or operation.get("op") != "test":
        return False
    if operation.get("value", "") is not None:
        return False
    *parents, last = JsonPointer(operation.get("path") or "").parts or [""]
    holder = JsonPointer.from_parts(parents).resolve(target)
    return isinstance(holder, dict) and last not in holder


_DELETE_ITEMS = "$deleteFromPrimitiveList/"


def strategic_patch(shape: Shape, target: Any, patch: Any) -> Any:
    """`target` changed by a strategic merge patch; the order that it asks for is not kept.

    Raises:
        ApiError: 400 for a list item without its merge key.
    """
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return _clean(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith(_DELETE_ITEMS):
            field = name.removeprefix(_DELETE_ITEMS)
            result[field] = [item for item in result.get(field, []) if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _patch_list(shape.child(name), result.get(name), value)
        else:
            result[name] = strategic_patch(shape.child(name), result.get(name), value)
    return result


def _patch_list(shape: Shape, target: Any, patch: list[Any]) -> list[Any]:
    key = shape.merge_key
    if not key or not isinstance(target, list) or {"$patch": "replace"} in patch:
        return [_clean(item) for item in patch if not _has_directive(item)]
    if key == "*":
        return target + [item for item in patch if item not in target]
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise errors.bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, have in enumerate(result) if have.get(key) == item[key]), None)
        if _has_directive(item):
            result = [have for have in result if have.get(key) != item[key]]
        elif at is None:
            result.append(_clean(item))
        else:
            result[at] = strategic_patch(shape.item or ANY, result[at], item)
    return result


def _has_directive(item: Any) -> bool:
    return isinstance(item, dict) and "$patch" in item


def _clean(value: Any) -> Any:
    """Drops directives and nulls from something that is taken over as new."""
    if isinstance(value, dict):
        return {
            name: _clean(inner)
            for name, inner in value.items()
            if inner is not None and not name.startswith("$")
        }
    return [_clean(item) for item in value] if isinstance(value, list) else value
