"""Errors that the decoders of this package raise."""

from __future__ import annotations

_MOST = 80


def quoted(value: object) -> str:
    """A user's value for a message: a text is quoted and cut; of another value only its type."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}" if value is not None else "None"
    return repr(value if len(value) <= _MOST else f"{value[:_MOST]}…")


class ApiError(Exception):
    """Base of the errors for objects of this project's API that cannot be accepted."""


class InvalidObjectError(ApiError):
    """A field is unknown, missing or has a bad value.

    ``kind``: kind of the object. ``path``: the field as the user wrote it, such as
    ``placement.policy``; empty for the object itself. ``problem``: text about that field.
    """

    def __init__(self, kind: str, path: str, problem: str) -> None:
        self.kind = kind
        self.path = path
        self.problem = problem
        where = f"{kind}: field {path!r}" if path else kind
        super().__init__(f"{where}: {problem}")
