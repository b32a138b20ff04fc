"""JSON patch (RFC 6902) by the library, and JSON merge patch (RFC 7386)."""

from __future__ import annotations

from typing import Any

import jsonpatch
from jsonpointer import JsonPointerException

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
        return jsonpatch.JsonPatch(operations).apply(target)
    except (jsonpatch.InvalidJsonPatch, TypeError) as malformed:
        raise errors.bad_request(f"error decoding patch: {malformed}") from None
    except (jsonpatch.JsonPatchException, JsonPointerException):
        raise errors.unprocessable() from None
