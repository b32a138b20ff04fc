"""Fields and types of a CDI spec, as its specification and JSON schema have them.

Stricter than the published schema in two respects: a field that is not listed is refused, and a
device that changes nothing, because runtimes refuse to load a spec with one.
"""

from __future__ import annotations

from typing import Any

import jsonschema

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_UINT32 = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
_INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def _fields(required: list[str], **fields: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


_EDITS = _fields(
    [],
    env=_TEXTS,
    deviceNodes=_list(
        _fields(
            ["path"],
            path=_TEXT,
            hostPath=_TEXT,
            type={"enum": ["b", "c", "u", "p"]},
            major=_INT64,
            minor=_INT64,
            fileMode=_INT64,
            permissions={"type": "string", "pattern": "^[rwm]+$"},
            uid=_UINT32,
            gid=_UINT32,
        )
    ),
    mounts=_list(
        _fields(
            ["hostPath", "containerPath"],
            hostPath=_TEXT,
            containerPath=_TEXT,
            options=_TEXTS,
            type=_TEXT,
        )
    ),
    hooks=_list(
        _fields(
            ["hookName", "path"],
            hookName=_TEXT,
            path=_TEXT,
            args=_TEXTS,
            env=_TEXTS,
            timeout=_UINT32,
        )
    ),
    additionalGids={"type": "array", "items": _UINT32},
)
_SPEC = _fields(
    ["cdiVersion", "kind", "devices"],
    cdiVersion=_TEXT,
    kind=_TEXT,
    devices=_list(
        _fields(
            ["name", "containerEdits"], name=_TEXT, containerEdits={**_EDITS, "minProperties": 1}
        )
    ),
    containerEdits=_EDITS,
)


def hold(encoded: dict[str, Any]) -> None:
    """Fail unless every field of a spec is one that runtimes know, of the right type."""
    jsonschema.validate(encoded, _SPEC)
