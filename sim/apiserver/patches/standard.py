"""JSON patch (RFC 6902) by the library, and JSON merge patch (RFC 7386)."""

from __future__ import annotations

from typing import Any

import jsonpatch
from jsonpointer import JsonPointer, JsonPointerException

from sim.apiserver.refusals import errors


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
