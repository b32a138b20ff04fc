"""Checkpoint of kubelet's prepared claims: ``<kubelet root>/dra_manager_state``."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra.gpu.inventory import ClaimRef
from sim.kubelet.plugins.plugin import PreparedDevice

FILE = "dra_manager_state"


@dataclass(slots=True)
class ClaimInfo:
    """A claim that pods of this node use.

    ``devices`` is by driver and has every driver of the allocation from the start. ``prepared`` is
    not kept in the file: after a restart of kubelet a claim is prepared again when a pod that is to
    start uses it.
    """

    ref: ClaimRef
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    prepared: bool = False


def load(root: Path) -> list[ClaimInfo]:
    """The claims in the file; none when there is no file."""
    try:
        text = (root / FILE).read_text()
    except FileNotFoundError:
        return []
    return [_read(entry) for entry in json.loads(text)["claims"]]


def save(root: Path, claims: list[ClaimInfo]) -> None:
    """Writes the file in one step."""
    draft = root / f".{FILE}.new"
    draft.write_text(json.dumps({"claims": [_write(claim) for claim in claims]}, indent=1))
    os.replace(draft, root / FILE)  # noqa: PTH105 - the atomic rename is the point


def _read(entry: dict[str, Any]) -> ClaimInfo:
    return ClaimInfo(
        ref=ClaimRef(entry["namespace"], entry["name"], entry["uid"]),
        pods=set(entry["pods"]),
        devices={
            driver: tuple(
                PreparedDevice(tuple(d["requests"]), d["pool"], d["device"], tuple(d["cdi"]))
                for d in devices
            )
            for driver, devices in entry["drivers"].items()
        },
    )


def _write(claim: ClaimInfo) -> dict[str, Any]:
    return {
        "namespace": claim.ref.namespace,
        "name": claim.ref.name,
        "uid": claim.ref.uid,
        "pods": sorted(claim.pods),
        "drivers": {
            driver: [
                {
                    "requests": list(d.request_names),
                    "pool": d.pool,
                    "device": d.device,
                    "cdi": list(d.cdi_ids),
                }
                for d in devices
            ]
            for driver, devices in claim.devices.items()
        },
    }
