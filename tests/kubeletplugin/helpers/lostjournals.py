"""Journals that are lost or damaged, and claims that were prepared before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.journal import previous, sealed
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
POD = {"resource": "pods", "name": "p", "uid": "pod-uid"}


def reserve(rig: Rig, ref: ClaimRef) -> None:
    rig.api.patch(
        RESOURCE_CLAIMS,
        ref.name,
        {"status": {"reservedFor": [POD]}},
        namespace="default",
        subresource="status",
    )


def lose_journal(rig: Rig) -> None:
    path = rig.roots.state / "journal.json"
    path.unlink()
    previous(path).unlink(missing_ok=True)


def prepared(rig: Rig, device: str = SLICE, *, reserved: bool = True) -> ClaimRef:
    ref = rig.claim(device)
    if reserved:
        reserve(rig, ref)
    rig.prepared(ref)
    return ref


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a journal file and make its checksum right again."""
    record = json.loads(path.read_bytes())
    change(record)
    seal(path, record)


def seal(path: Path, record: dict[str, Any]) -> None:
    """Write a journal file of these fields, with the right checksum."""
    body = {k: v for k, v in record.items() if k != "checksum"}
    path.write_bytes(sealed(json.dumps(body).encode()[:-1]))
