"""Files by which NVIDIA's device plugin shares GPUs, as classes of nodes.

Fields: ``api/config/v1`` of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from typing import Final

from api.config import API_VERSION, GPU_KIND
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, text
from dra.claims.classes import SHARE_CLASS
from dra.common.resources import Obj

_STRATEGIES: Final = {"timeSlicing": "TimeSlicing", "mps": "MPS"}


def is_plugin_config(obj: Obj) -> bool:
    """True if an object is meant to be a configuration file of NVIDIA's device plugin."""
    return "kind" not in obj and isinstance(obj.get("sharing"), dict) and "version" in obj


def convert_plugin_config(document: Document) -> tuple[Obj, list[Remark]]:
    """The class of nodes that a file of the device plugin becomes, and what is to be said of it."""
    remarks: list[Remark] = []
    shares = 1
    for method, strategy in _STRATEGIES.items():
        for index, entry in entries(document.obj, "sharing", method, "resources"):
            path: Path = ("sharing", method, "resources", index)
            name, replicas = text(entry, "name"), entry.get("replicas")
            if name.startswith("nvidia.com/mig-"):
                message = (
                    f"slices are not given {replicas} times: let the pods name one ResourceClaim"
                    + (" with sharing.strategy 'MPS' in a MigDeviceConfig" * (method == "mps"))
                )
                remarks.append(document.remark(Level.WARNING, path, message))
            elif not isinstance(replicas, int) or replicas < 1:
                message = f"replicas has to be a number from 1 on, not {replicas!r}"
                remarks.append(document.remark(Level.ERROR, (*path, "replicas"), message))
            else:
                shares = max(shares, replicas)
                remarks.append(document.remark(Level.WARNING, path, _of_shares(strategy, replicas)))
    made: Obj = {"apiVersion": API_VERSION, "kind": "MigNodeClass", "mode": "whole"}
    return {**made, "shares": shares}, remarks


def _of_shares(strategy: str, replicas: int) -> str:
    said = (
        f"shares: {replicas} gives each GPU whose MIG mode is off to as many claims of class "
        f"{SHARE_CLASS}; pods ask by such claims, not by limits"
    )
    if strategy == "MPS":
        return (
            f"{said}. For the limits of the device plugin's MPS give the claims a {GPU_KIND} with "
            f"sharing.strategy 'MPS' and activeThreadPercentage: {100 // replicas}"
        )
    return said
