"""NVIDIA's ways to share a device, as they are written here: its DRA driver's, its device plugin's.

Fields: ``api/nvidia.com/resource/v1beta1`` of NVIDIA/k8s-dra-driver-gpu, and ``api/config/v1`` of
NVIDIA/k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from api.config import API_VERSION, GPU_KIND, KIND
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, mapping, text
from dra.claims.classes import ANY_SLICE_CLASS, GPU_CLASS, SHARE_CLASS
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import Obj
from dra.gpu.names import DEFAULT_DRIVER

DRIVER: Final = "gpu.nvidia.com"
_GROUP: Final = "resource.nvidia.com/"
_CLASSES: Final = {DRIVER: GPU_CLASS, "mig.nvidia.com": ANY_SLICE_CLASS}
_DEVICES: Final[dict[str, Path]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}
_MEBIBYTE: Final = 2**20
_STRATEGIES: Final = {"timeSlicing": "TimeSlicing", "mps": "MPS"}


def convert_claim(document: Document) -> Iterator[Remark]:
    """Write a claim, template or class for NVIDIA's DRA driver anew, in place."""
    at = _DEVICES.get(document.kind)
    if at is None:
        return
    devices = mapping(document.obj, *(str(step) for step in at))
    for index, request in entries(devices, "requests"):
        path: Path = (*at, "requests", index)
        bodies = [request.get("exactly"), *(a for _, a in entries(request, "firstAvailable"))]
        for body in bodies:
            if isinstance(body, dict):
                yield from _convert_body(document, path, body)
    if document.kind == "DeviceClass":
        yield from _convert_selectors(document, at, devices)
    for index, entry in entries(devices, "config"):
        opaque = mapping(entry, "opaque")
        if text(opaque, "driver") == DRIVER:
            yield from _convert_config(document, (*at, "config", index, "opaque"), opaque)


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


def _convert_body(document: Document, path: Path, body: dict[str, Any]) -> Iterator[Remark]:
    name = text(body, "deviceClassName")
    if name in _CLASSES:
        body["deviceClassName"] = _CLASSES[name]
    elif name.endswith(".nvidia.com"):
        message = (
            f"class {name!r} has no counterpart here; there are: {', '.join(_CLASSES.values())}"
        )
        yield document.remark(Level.ERROR, (*path, "deviceClassName"), message)
    yield from _convert_selectors(document, path, body)


def _convert_selectors(document: Document, path: Path, body: dict[str, Any]) -> Iterator[Remark]:
    for index, selector in entries(body, "selectors"):
        cel = mapping(selector, "cel")
        if DRIVER in text(cel, "expression"):
            cel["expression"] = text(cel, "expression").replace(DRIVER, DEFAULT_DRIVER)
            message = (
                "the driver's name is exchanged; whether this driver's devices have these "
                "attributes shows kubectl mig lint"
            )
            yield document.remark(Level.HINT, (*path, "selectors", index, "cel"), message)


def _convert_config(document: Document, path: Path, opaque: dict[str, Any]) -> Iterator[Remark]:
    parameters = mapping(opaque, "parameters")
    kind = text(parameters, "kind")
    if not text(parameters, "apiVersion").startswith(_GROUP) or kind not in (KIND, GPU_KIND):
        message = f"kind {kind!r} has no counterpart here; there are: {KIND}, {GPU_KIND}"
        yield document.remark(Level.ERROR, (*path, "parameters"), message)
        return
    theirs = mapping(parameters, "sharing")
    made: Obj = {"apiVersion": API_VERSION, "kind": kind}
    where: Path = (*path, "parameters", "sharing")
    strategy = text(theirs, "strategy")
    if strategy == "TimeSlicing" and kind == KIND:
        message = "TimeSlicing has no effect on slices there, and none here: it is left out"
        yield document.remark(Level.WARNING, where, message)
    elif strategy == "TimeSlicing":
        interval = text(mapping(theirs, "timeSlicingConfig"), "interval")
        turns = {"timeSlicing": {"interval": interval}} if interval else {}
        made["sharing"] = {"strategy": strategy, **turns}
    elif strategy == "MPS":
        limits, dropped = _limits(mapping(theirs, "mpsConfig"))
        made["sharing"] = {"strategy": strategy, **({"mps": limits} if limits else {})}
        for field, why in dropped.items():
            yield document.remark(Level.WARNING, (*where, "mpsConfig", field), why)
    opaque |= {"driver": DEFAULT_DRIVER, "parameters": made}


def _limits(theirs: dict[str, Any]) -> tuple[Obj, dict[str, str]]:
    """Limits of MPS as they are written here, and the fields that are left out, with the reason."""
    made: Obj = {}
    dropped: dict[str, str] = {}
    for field, value in theirs.items():
        if field == "defaultActiveThreadPercentage":
            made["activeThreadPercentage"] = value
        elif field == "defaultPinnedDeviceMemoryLimit":
            try:
                made["pinnedDeviceMemoryLimit"] = f"{int(parse_quantity(value) // _MEBIBYTE)}Mi"
            except (QuantityError, TypeError):
                dropped[field] = f"{value!r} is no quantity; it is left out"
        else:
            dropped[field] = (
                "it is left out: a daemon serves one device here, and its limit is "
                "defaultPinnedDeviceMemoryLimit"
            )
    return made, dropped
