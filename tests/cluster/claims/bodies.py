"""Parts of claims that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra.common.resources import Obj

PARENT = "mig.dra.dev/parentUUID"


def exactly(name: str, device_class: str, **more: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def first_available(name: str, *subrequests: Obj) -> Obj:
    return {"name": name, "firstAvailable": list(subrequests)}


def spread_for(*requests: str) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "spread"},
    }
    found: Obj = {"opaque": {"driver": "mig.dra.dev", "parameters": parameters}}
    return {**found, "requests": list(requests)}


Serve = Callable[..., list[Obj]]


def gpus(results: list[Obj]) -> list[str]:
    return [r["device"].partition("-mig-")[0] for r in results]


def claim_body(name: str, spec: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
