"""Failures as the API answers them: an HTTP code and a `Status` object.

Texts and reasons follow k8s.io/apimachinery (`api/errors`, `field.Error`): clients match on them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dra.common.resources import Obj

if TYPE_CHECKING:
    from collections.abc import Sequence


MODIFIED_SINCE = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """One broken rule: its kind, the path of the field, and what is wrong there."""

    type: str
    field: str
    message: str

    def as_json(self) -> dict[str, Any]:
        """The entry of `details.causes`."""
        return {"reason": self.type, "message": self.message, "field": self.field}


def invalid(field: str, value: Any, detail: str) -> Cause:
    """The cause that a value breaks a rule."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Cause("FieldValueInvalid", field, f"Invalid value: {text}: {detail}")


def forbidden(field: str, detail: str) -> Cause:
    """The cause that a value may not be given here."""
    return Cause("FieldValueForbidden", field, f"Forbidden: {detail}")


class Named(Protocol):
    """Names of a resource, as messages give them."""

    @property
    def group(self) -> str: ...
    @property
    def plural(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def qualified(self) -> str:
        """Plural and group."""


class ApiError(Exception):
    """One refused request; `code` is the HTTP status and `reason` the machine-readable word."""

    def __init__(self, code: int, reason: str, message: str, *, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Obj:
        """The `Status` object that goes into the response body or a watch's ERROR event."""
        body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        return body | {"code": self.code}


def _about(resource: Named, name: str, *, kind: str = "") -> Obj:
    details: Obj = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": kind or resource.plural}


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def page_not_found() -> ApiError:
    """404 for a path that no resource serves."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def not_found(resource: Named, name: str) -> ApiError:
    """404 for an object."""
    message = f'{resource.qualified} "{name}" not found'
    return ApiError(404, "NotFound", message, details=_about(resource, name))


def already_exists(resource: Named, name: str) -> ApiError:
    """409 on create."""
    message = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_about(resource, name))


def conflict(resource: Named, name: str, why: str = MODIFIED_SINCE) -> ApiError:
    """409 on update: a stale resourceVersion, a failed precondition, a refused binding."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, details=_about(resource, name))


def refused(resource: Named, name: str, causes: Sequence[Cause]) -> ApiError:
    """422 with one cause for every field that breaks a rule."""
    lines = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    details = _about(resource, name, kind=resource.kind)
    details["causes"] = [cause.as_json() for cause in causes]
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def unprocessable() -> ApiError:
    """422 of a JSON patch that cannot be applied to this object."""
    return ApiError(
        422, "Invalid", "the server rejected our request due to an error in our request"
    )


def expired(message: str) -> ApiError:
    """410: the asked-for version is no longer in the history."""
    return ApiError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    """504 for a resourceVersion that this server has not reached."""
    text = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details = {"causes": [cause], "retryAfterSeconds": 1}
    return ApiError(504, "Timeout", text, details=details)


def method_not_allowed() -> ApiError:
    """405: the resource is served, the verb is not."""
    text = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", text)


def unsupported_media_type(accepted: Sequence[str]) -> ApiError:
    """415: a body or patch in a form that this resource does not take."""
    text = "the body of the request was in an unknown format - accepted media types include: "
    return ApiError(415, "UnsupportedMediaType", text + ", ".join(accepted))
