"""Errors that the decoders of this package raise."""

from __future__ import annotations

_MOST = 80


def quoted(value: object) -> str:
    """Text of a user, cut to the room of a message; of what is no text only its type."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}" if value is not None else "None"
    return repr(value if len(value) <= _MOST else f"{value[:_MOST]}…")


class ApiError(Exception):
    """An object of ours that cannot be accepted."""


class InvalidObjectError(ApiError):
    """A field is unknown, missing or has a bad value.

    ``path`` is the field as the user wrote it (``placement.policy``), empty for the object itself.
    """

    def __init__(self, kind: str, path: str, problem: str) -> None:
        self.kind = kind
        self.path = path
        self.problem = problem
        where = f"{kind}: field {path!r}" if path else kind
        super().__init__(f"{where}: {problem}")
