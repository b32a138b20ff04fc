"""The few bodies that kubectl sends as protobuf: its `create` of simple kinds, and evictions.

Everything else comes as JSON, and answers always are JSON.

Field numbers are those of the `generated.proto` files of k8s.io/api; maps are repeated entries of
key (1) and value (2).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sim.apiserver.refusals import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

Obj = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class _Field:
    """The JSON name of a field and how its bytes are read."""

    name: str
    kind: Literal["text", "texts", "number", "flag", "map", "bytes map", "message"] = "text"
    message: str = ""


_MESSAGES: dict[str, dict[int, _Field]] = {
    "ObjectMeta": {
        1: _Field("name"),
        2: _Field("generateName"),
        3: _Field("namespace"),
        5: _Field("uid"),
        6: _Field("resourceVersion"),
        11: _Field("labels", "map"),
        12: _Field("annotations", "map"),
        14: _Field("finalizers", "texts"),
    },
    "Preconditions": {1: _Field("uid"), 2: _Field("resourceVersion")},
    "DeleteOptions": {
        1: _Field("gracePeriodSeconds", "number"),
        2: _Field("preconditions", "message", "Preconditions"),
        4: _Field("propagationPolicy"),
        5: _Field("dryRun", "texts"),
    },
    "Namespace": {},
    "ServiceAccount": {},
    "ConfigMap": {
        2: _Field("data", "map"),
        3: _Field("binaryData", "bytes map"),
        4: _Field("immutable", "flag"),
    },
    "Secret": {
        2: _Field("data", "bytes map"),
        3: _Field("type"),
        4: _Field("stringData", "map"),
        5: _Field("immutable", "flag"),
    },
    "Eviction": {2: _Field("deleteOptions", "message", "DeleteOptions")},
}
_METADATA = _Field("metadata", "message", "ObjectMeta")


def decode(body: bytes) -> Obj:
    """Give the object in a protobuf body.

    Raises:
        ApiError: 415 for a kind that is not known here, 400 for broken bytes.
    """
    if not body.startswith(_MAGIC):
        raise errors.bad_request("the body is no protobuf of Kubernetes")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        kind_of = dict(_fields(envelope[1]))
        version, kind = kind_of[1].decode(), kind_of[2].decode()
        if kind not in _MESSAGES or kind in ("ObjectMeta", "Preconditions"):
            raise errors.unsupported_media_type(["application/json", "application/yaml"])
        return {"apiVersion": version, "kind": kind} | _message(kind, envelope.get(2, b""))
    except (IndexError, KeyError, UnicodeDecodeError, AttributeError, TypeError) as broken:
        raise errors.bad_request(f"the protobuf body is broken: {broken}") from None


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Give (number, value) of each field: an int for numbers, bytes for the rest."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _BYTES:
            length, at = _varint(data, at)
        if length is None or at + length > len(data):
            raise IndexError(f"field {number}")
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return value, at
        shift += 7


def _message(kind: str, data: bytes) -> Obj:
    known = _MESSAGES[kind]
    if kind not in ("ObjectMeta", "Preconditions", "DeleteOptions"):
        known = known | {1: _METADATA}
    found: Obj = {}
    for number, value in _fields(data):
        field = known.get(number)
        if field is None or value == b"":
            continue
        if field.kind == "message":
            found[field.name] = _message(field.message, value)
        elif field.kind in ("map", "bytes map"):
            entry = dict(_fields(value))
            inner = entry.get(2, b"")
            text = base64.b64encode(inner) if field.kind == "bytes map" else inner
            found.setdefault(field.name, {})[entry[1].decode()] = text.decode()
        elif field.kind == "texts":
            found.setdefault(field.name, []).append(value.decode())
        elif field.kind == "text":
            found[field.name] = value.decode()
        else:
            found[field.name] = bool(value) if field.kind == "flag" else value
    return found
