"""Causes of a 422, one for each wrong field, worded as k8s.io/apimachinery `field.Error`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORDS = {
    "FieldValueNotFound": "Not found",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
}
_WITHOUT_VALUE = {"FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong"}


@dataclass(frozen=True, slots=True)
class Cause:
    """One broken rule: its kind, the path of the field, the offending value, and why."""

    type: str
    field: str
    value: Any
    detail: str

    def message(self) -> str:
        """Says what is wrong, without the path of the field."""
        text = _WORDS[self.type]
        if self.type not in _WITHOUT_VALUE:
            text += f": {json.dumps(self.value, separators=(',', ':'), ensure_ascii=False)}"
        return f"{text}: {self.detail}" if self.detail else text

    def as_json(self) -> dict[str, Any]:
        """The entry of `details.causes`."""
        return {"reason": self.type, "message": self.message(), "field": self.field}


def required(field: str, detail: str = "") -> Cause:
    """Says that a value is missing."""
    return Cause("FieldValueRequired", field, None, detail)


def invalid(field: str, value: Any, detail: str) -> Cause:
    """Says that a value breaks a rule."""
    return Cause("FieldValueInvalid", field, value, detail)


def wrong_type(field: str, value: Any, detail: str) -> Cause:
    """Says that a value has another JSON type than the schema."""
    return Cause("FieldValueTypeInvalid", field, value, detail)


def forbidden(field: str, detail: str) -> Cause:
    """Says that a value may not be given here."""
    return Cause("FieldValueForbidden", field, None, detail)


def duplicate(field: str, value: Any) -> Cause:
    """Says that a value is there twice."""
    return Cause("FieldValueDuplicate", field, value, "")


def not_found(field: str, value: Any) -> Cause:
    """Says that a value names something that is not there."""
    return Cause("FieldValueNotFound", field, value, "")


def not_supported(field: str, value: Any, allowed: Iterable[str]) -> Cause:
    """Says that a value is none of the known ones."""
    words = ", ".join(f'"{word}"' for word in allowed)
    return Cause("FieldValueNotSupported", field, value, f"supported values: {words}")


def too_long(field: str, limit: int) -> Cause:
    """Says that a text has more than `limit` bytes."""
    unit = "byte" if limit == 1 else "bytes"
    return Cause("FieldValueTooLong", field, None, f"may not be more than {limit} {unit}")


def too_many(field: str, count: int, limit: int) -> Cause:
    """Says that a list has more than `limit` items."""
    unit = "item" if limit == 1 else "items"
    return Cause("FieldValueTooMany", field, count, f"must have at most {limit} {unit}")
