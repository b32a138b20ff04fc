"""Patches: JSON patch (RFC 6902) by the library, merge patch (RFC 7386), strategic merge patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonpatch
from jsonpointer import JsonPointer, JsonPointerException

from dra.common.resources import Obj
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


_ORDER = "$setElementOrder/"
_DELETE_ITEMS = "$deleteFromPrimitiveList/"


def strategic_patch(shape: Shape, target: Any, patch: Any) -> Any:
    """`target` changed by a strategic merge patch.

    Raises:
        ApiError: 400 for an unknown directive or a list item without its merge key.
    """
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return _clean({name: value for name, value in patch.items() if name != "$patch"})
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise errors.bad_request(f"Unknown patch type: {directive}")
    result = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        result = {name: v for name, v in result.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        _patch_field(shape, result, patch, name, value)
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if name.startswith(_ORDER) and field not in patch and field in result:
            key = shape.child(field).merge_key
            result[field] = _ordered(result[field], order, key)
    return result


def _patch_field(shape: Shape, result: Obj, patch: Obj, name: str, value: Any) -> None:
    if name.startswith(_DELETE_ITEMS):
        field = name.removeprefix(_DELETE_ITEMS)
        result[field] = [item for item in result.get(field, []) if item not in value]
    elif name.startswith("$"):
        return
    elif value is None:
        result.pop(name, None)
    elif isinstance(value, list):
        order = patch.get(_ORDER + name)
        result[name] = _patch_list(shape.child(name), result.get(name), value, order)
    else:
        result[name] = strategic_patch(shape.child(name), result.get(name), value)


def _patch_list(shape: Shape, target: Any, patch: list[Any], order: list[Any] | None) -> Any:
    if not shape.merge_key or not isinstance(target, list):
        if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
            patch = [item for item in patch if item != {"$patch": "replace"}]
        return [_clean(item) for item in patch if not _deletes(item)]
    if shape.merge_key == "*":
        return target + [item for item in patch if item not in target]
    if {"$patch": "replace"} in patch:
        return [_clean(item) for item in patch if item != {"$patch": "replace"}]
    key = shape.merge_key
    result = list(target)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise errors.bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, have in enumerate(result) if have.get(key) == item[key]), None)
        if _deletes(item):
            result = [have for have in result if have.get(key) != item[key]]
        elif at is None:
            result.append(_clean(item))
        else:
            result[at] = strategic_patch(shape.item or ANY, result[at], item)
    return _ordered(result, order, key) if order else result


def _deletes(item: Any) -> bool:
    return isinstance(item, dict) and item.get("$patch") == "delete"


def _clean(value: Any) -> Any:
    """Drops directives and nulls from something that is taken over as new."""
    if isinstance(value, dict):
        return {
            name: _clean(inner)
            for name, inner in value.items()
            if inner is not None and not name.startswith("$")
        }
    return [_clean(item) for item in value] if isinstance(value, list) else value


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    def identity(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else item

    position = {identity(item): index for index, item in enumerate(order)}
    # Items that the order does not name keep their place after those that it names.
    return sorted(items, key=lambda item: position.get(identity(item), len(position)))
