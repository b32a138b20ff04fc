"""Fields of log lines about claims and their devices: the names that the controller uses too."""

from __future__ import annotations

from typing import Any

from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import Entry


def about(ref: ClaimRef, **more: Any) -> dict[str, Any]:
    """A claim, for ``extra`` of a log call; the pod is added where it is known (ClaimCache)."""
    return {"claim": str(ref), "uid": ref.uid, **more}


def device(entry: Entry, **more: Any) -> dict[str, Any]:
    """A device of a claim: where it is, and as what."""
    return about(
        entry.claim,
        device=entry.device,
        gpu=entry.device.partition("-mig-")[0],
        gpu_uuid=entry.gpu,
        profile=entry.profile or "gpu",
        placement="whole" if entry.placement is None else str(entry.placement),
        **{k: v for k, v in (("gi", entry.gi_id), ("ci", entry.ci_id)) if v is not None},
        **more,
    )
