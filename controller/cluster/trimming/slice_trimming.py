"""Trimming of ResourceSlices of other drivers to a digest: only that one changed is of interest."""

from __future__ import annotations

import hashlib

import msgspec

from dra.common.resources import Obj


def trim_slice(obj: Obj) -> Obj:
    """Name and node of a slice, and a digest that changes with what it offers."""
    spec = obj["spec"]
    # A pool's generation grows with each change of any of its slices.
    offered = {key: value for key, value in spec.items() if key != "pool"}
    digest = hashlib.sha256(msgspec.json.encode(offered, order="sorted")).hexdigest()
    metadata = {"name": obj["metadata"]["name"]}
    return {"metadata": metadata, "spec": {"nodeName": spec.get("nodeName") or "", "is": digest}}
