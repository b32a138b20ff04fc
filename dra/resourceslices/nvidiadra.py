"""NVIDIA's DRA driver on a node, recognised by the Node's label and by its ResourceSlices.

With its gate DynamicMIG it publishes MIG devices that do not exist yet. Whenever it starts, it then
destroys every MIG device that its own checkpoint does not name, and turns MIG mode off on Hopper
and newer where none is left. Without the gate it gives out the MIG devices that it finds when it
starts, ours among them, and GPUs whose MIG mode is off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import at
from dra.gpu.names import NVIDIA_DRIVER
from dra.resourceslices.resourceslices import is_own_name

DEPLOY_LABEL = "nvidia.com/gpu.deploy.dra-driver"
"""Label of the GPU operator: ``true``, or ``paused-...`` while the kernel driver is exchanged."""

_PAUSED = "paused-"
_FOUND, _ON_DEMAND = "MIG devices that it found", "MIG devices to be made on demand"
_NAMES = {"gpu": "GPUs", "vfio": "GPUs for virtual machines"}
_KINDS = "kinds"


@dataclass(frozen=True, slots=True)
class DraDriver:
    """NVIDIA's DRA driver on a node. ``sign``: the label or the slices that show it, in words.

    ``makes_devices``: it makes MIG devices on demand, or nothing says that it does not.
    """

    sign: str
    makes_devices: bool


def summary(slice_: Mapping[str, Any]) -> dict[str, Any]:
    """Summary of a ResourceSlice (resource.k8s.io/v1) for :func:`dra_driver`: the rest is large.

    This driver may run under NVIDIA's name too: its own slices, known by their names, do not count.
    """
    name, node = slice_["metadata"]["name"], at(slice_, "spec", "nodeName", default="")
    ours = is_own_name(name, driver=NVIDIA_DRIVER, node=node)
    kinds = Counter(_kind(device) for device in at(slice_, "spec", "devices") if not ours)
    return {"metadata": slice_["metadata"], _KINDS: kinds}


def dra_driver(node: Mapping[str, Any], summaries: Iterable[Mapping[str, Any]]) -> DraDriver | None:
    """NVIDIA's DRA driver on a Node (core/v1), if its label or the summaries show one.

    The label alone leaves open what it will publish: a driver that starts has destroyed what it
    does not know before it publishes anything.
    """
    kinds: Counter[str] = sum((Counter(each[_KINDS]) for each in summaries), Counter())
    if kinds:
        shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return DraDriver(f"ResourceSlices of {NVIDIA_DRIVER}: {shown}", _ON_DEMAND in kinds)
    label = at(node, "metadata", "labels", DEPLOY_LABEL, default="")
    if label == "true" or label.startswith(_PAUSED):
        return DraDriver(f"label {DEPLOY_LABEL}={label}", makes_devices=True)
    return None


def _kind(device: Mapping[str, Any]) -> str:
    attributes = at(device, "attributes", default={})
    kind = str(_attribute(attributes, "type").get("string", ""))
    if kind == "mig":
        # A device that exists has a UUID. Its counters show it too, but servers may drop them.
        return _FOUND if _attribute(attributes, "uuid") else _ON_DEMAND
    return _NAMES.get(kind, f"devices of type {kind or 'unknown'}")


def _attribute(attributes: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    qualified = f"{NVIDIA_DRIVER}/{name}"
    found: Mapping[str, Any] = attributes.get(name) or attributes.get(qualified) or {}
    return found
