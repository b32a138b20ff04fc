"""What version 0.1.0 reads of a journal, written down from its source: no code of today's is used.

Fields that it does not know pass; a state that it does not know, or a field of another type, makes
it set a record aside and keep its placement unavailable.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

OLDEST, NEWEST = 1, 3
STATES = {
    *("intent", "gi-created", "ci-created", "cdi-written", "prepared", "lost", "destroying"),
    *("ci-destroyed", "reclaiming", "orphan", "tombstone"),
}
_TEXT, _NUMBER, _FLAG = (str,), (int,), (bool,)
_MAYBE_NUMBER, _LIST, _MAYBE_LIST = (int, type(None)), (list,), (list, type(None))
REQUIRED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("namespace", "name", "uid", "device", "gpu", "state", "profile"), _TEXT),
    **dict.fromkeys(("migUUID", "bootID"), _TEXT),
    **dict.fromkeys(("profileID", "gpuInstanceID", "computeInstanceID"), _MAYBE_NUMBER),
    "placement": _MAYBE_LIST,
}
OPTIONAL: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pool", "note", "interval", "shareID"), _TEXT),
    **dict.fromkeys(("adopted", "wiped", "view", "ahead", "idle", "layout"), _FLAG),
    "requests": _LIST,
    "total": _NUMBER,
    "share": (dict, type(None)),
    "mps": _MAYBE_LIST,
}


def read(data: bytes) -> list[dict[str, Any]]:
    """The records of a journal.

    Raises:
        ValueError: it would not use the file, or would set a record aside.
    """
    journal = json.loads(data)
    if not OLDEST <= journal["version"] <= NEWEST:
        raise ValueError(f"version {journal['version']}")
    body = {name: value for name, value in journal.items() if name != "checksum"}
    if journal["checksum"] != _checksum(body):
        raise ValueError("wrong checksum")
    if not isinstance(journal["generation"], int):
        raise ValueError("generation")  # noqa: TRY004 - as for any bad content
    records: list[dict[str, Any]] = journal["entries"]
    for record in records:
        _check(record)
    return records


def sealed(body: dict[str, Any]) -> bytes:
    """A journal's bytes as it writes them."""
    return json.dumps({**body, "checksum": _checksum(body)}).encode()


def _checksum(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _check(record: dict[str, Any]) -> None:
    for name in REQUIRED:
        if name not in record:
            raise ValueError(f"{name} is missing")
    for name, kinds in (REQUIRED | OPTIONAL).items():
        if name in record and type(record[name]) not in kinds:
            raise ValueError(f"{name} is {record[name]!r}")
    if record["state"] not in STATES:
        raise ValueError(f"state {record['state']!r}")
