"""Files by which NVIDIA's device plugin shares GPUs, as classes of nodes.

Fields: ``api/config/v1`` of NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from typing import Final

from api.config import API_VERSION, GPU_KIND, KIND
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, text
from dra.claims.classes import SHARE_CLASS, SLICE_SHARE_CLASS
from dra.common.resources import Obj

_STRATEGIES: Final = {"timeSlicing": "TimeSlicing", "mps": "MPS"}


def is_plugin_config(obj: Obj) -> bool:
    """True if an object is meant to be a configuration file of NVIDIA's device plugin."""
    return "kind" not in obj and isinstance(obj.get("sharing"), dict) and "version" in obj


def convert_plugin_config(document: Document) -> tuple[Obj, list[Remark]]:
    """The class of nodes that a file of the device plugin becomes, and what is to be said of it."""
    remarks: list[Remark] = []
    shares, slice_shares = 1, 1
    for method, strategy in _STRATEGIES.items():
        for index, entry in entries(document.obj, "sharing", method, "resources"):
            path: Path = ("sharing", method, "resources", index)
            name, replicas = text(entry, "name"), entry.get("replicas")
            profile = name.removeprefix("nvidia.com/mig-") if "/mig-" in name else ""
            if not isinstance(replicas, int) or replicas < 1:
                message = f"replicas has to be a number from 1 on, not {replicas!r}"
                remarks.append(document.remark(Level.ERROR, (*path, "replicas"), message))
                continue
            if profile:
                slice_shares = max(slice_shares, replicas)
            else:
                shares = max(shares, replicas)
            message = _of_shares(strategy, replicas, profile)
            remarks.append(document.remark(Level.WARNING, path, message))
    mode = "on-demand" if slice_shares > 1 and shares == 1 else "whole"
    made: Obj = {"apiVersion": API_VERSION, "kind": "MigNodeClass", "mode": mode, "shares": shares}
    return {**made, **({"sliceShares": slice_shares} if slice_shares > 1 else {})}, remarks


def _of_shares(strategy: str, replicas: int, profile: str) -> str:
    said = (
        f"sliceShares: {replicas} lets as many claims of class {SLICE_SHARE_CLASS} have one slice "
        f"of those that a selector of theirs names (profile == '{profile}')"
        if profile
        else f"shares: {replicas} gives each GPU whose MIG mode is off to as many claims of class "
        f"{SHARE_CLASS}"
    )
    said += "; pods ask by such claims, not by limits"
    if strategy == "MPS":
        return (
            f"{said}. For the limits of the device plugin's MPS give the claims a "
            f"{KIND if profile else GPU_KIND} with sharing.strategy 'MPS' and "
            f"activeThreadPercentage: {100 // replicas}"
        )
    return said
