"""Journals that are lost or damaged, and claims that were prepared before."""

from __future__ import annotations

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.journal import previous
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
