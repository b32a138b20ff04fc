"""Bytes of specs: JSON that every YAML parser reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from cdi.spec import Edits, Spec, encode, encode_edits
from cdi.validate import validate, validate_devices

_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters that a string of JSON may have as they are, and one of YAML may not."""


class Renderer:
    """Checks and encodes specs, and what they share once for all that share the same object.

    Thread-safe: what is kept is a value, which is replaced whole.
    """

    def __init__(self) -> None:
        self._kept: tuple[Edits, msgspec.Raw] | None = None

    def render(self, spec: Spec) -> bytes:
        """The content of a spec's file.

        Raises:
            SpecError: the spec breaks a rule of the specification.
        """
        kept = self._kept
        if kept is not None and kept[0] is spec.common:
            validate_devices(spec)
        else:
            validate(spec)
            kept = self._kept = (spec.common, msgspec.Raw(_json(encode_edits(spec.common))))
        return dump(encode(spec, kept[1]))


def dump(encoded: Mapping[str, Any]) -> bytes:
    """A mapping as lines of JSON: no string in it can be taken for a number by a YAML parser.

    PyYAML takes milliseconds for the same.
    """
    return msgspec.json.format(_json(encoded), indent=1)


def _json(encoded: object) -> bytes:
    data = msgspec.json.encode(encoded)
    if data.isascii() and b"\x7f" not in data:
        return data
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()
