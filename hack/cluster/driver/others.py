"""Devices of another driver, as objects: nobody prepares them, so that pods are bound and wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra.common.resources import Obj

DRIVER = "tape.example.com"
CLASS = "tape"
_API = "resource.k8s.io/v1"


def device_class() -> Obj:
    """The class of the devices."""
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return _object("DeviceClass", CLASS, {"selectors": selectors})


def resource_slice(node: str, count: int, *taints: Obj) -> Obj:
    """``count`` devices of a node, each with these taints, as its driver would publish them."""
    more = {"taints": [*taints]} if taints else {}
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"tape-{number}", **more} for number in range(count)],
    }
    return _object("ResourceSlice", f"{CLASS}-{node}", spec)


def claim_template() -> Obj:
    """A template of claims for one device, which is called like the class."""
    request = {"name": "r", "exactly": {"deviceClassName": CLASS}}
    return _object("ResourceClaimTemplate", CLASS, {"spec": {"devices": {"requests": [request]}}})


def _object(kind: str, name: str, spec: Obj) -> Obj:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}
