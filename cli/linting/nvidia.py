"""Conversion of claims, templates and classes for NVIDIA's DRA driver to those for this one.

Fields: ``api/nvidia.com/resource/v1beta1`` and ``demo/specs`` of NVIDIA/k8s-dra-driver-gpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from api.config import translated
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from dra.claims.classes import ANY_SLICE_CLASS, GPU_CLASS
from dra.common.resources import Obj
from dra.gpu.names import DEFAULT_DRIVER

DRIVER: Final = "gpu.nvidia.com"
_CLASSES: Final = {DRIVER: GPU_CLASS, "mig.nvidia.com": ANY_SLICE_CLASS}
_DEVICES: Final[dict[str, Path]] = {
    "ResourceClaim": ("spec", "devices"),
    "ResourceClaimTemplate": ("spec", "spec", "devices"),
    "DeviceClass": ("spec",),
}


def convert_claim(document: Document) -> Iterator[Remark]:
    """Change a claim, template or class for NVIDIA's DRA driver, in place, to one of ours."""
    at = _DEVICES.get(document.kind)
    if at is None:
        return
    if text(document.obj, "apiVersion").startswith("resource.k8s.io/v1alpha"):
        message = (
            "classes and parameters of drivers left Kubernetes with 1.32: write requests as in "
            "resource.k8s.io/v1 (NVIDIA's demo/specs/quickstart/v1), and convert those"
        )
        yield document.remark(Level.ERROR, ("apiVersion",), message)
        return
    devices = mapping(document.obj, *(str(step) for step in at))
    _nest(document.obj, devices)
    _convert_constraints(devices)
    yield from _convert_requests(document, at, devices)
    if document.kind == "DeviceClass":
        yield from _convert_selectors(document, at, devices)
    for index, entry in entries(devices, "config"):
        opaque = mapping(entry, "opaque")
        if text(opaque, "driver") == DRIVER:
            yield from _convert_config(document, (*at, "config", index, "opaque"), opaque)


def _nest(obj: Obj, devices: dict[str, Any]) -> None:
    """Move fields of v1beta1 requests for NVIDIA's classes below ``exactly``, as v1 has them."""
    requests = [request for _, request in entries(devices, "requests")]
    flat = [request for request in requests if "deviceClassName" in request]
    if text(obj, "apiVersion") != "resource.k8s.io/v1beta1" or not any(
        text(request, "deviceClassName").endswith(".nvidia.com") for request in flat
    ):
        return
    obj["apiVersion"] = "resource.k8s.io/v1"
    for request in flat:
        request["exactly"] = {
            field: request.pop(field) for field in [*request] if field not in ("name", "exactly")
        }


def _convert_requests(document: Document, at: Path, devices: dict[str, Any]) -> Iterator[Remark]:
    for index, request in entries(devices, "requests"):
        path: Path = (*at, "requests", index)
        bodies = [request.get("exactly"), *(a for _, a in entries(request, "firstAvailable"))]
        for body in bodies:
            if isinstance(body, dict):
                yield from _convert_body(document, path, body)


def _convert_constraints(devices: dict[str, Any]) -> None:
    for _, constraint in entries(devices, "constraints"):
        for field in ("matchAttribute", "distinctAttribute"):
            domain, _, attribute = text(constraint, field).partition("/")
            if domain == DRIVER:
                constraint[field] = f"{DEFAULT_DRIVER}/{attribute}"


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
    try:
        made = translated(parameters)
    except InvalidObjectError as error:
        fields = [field for field in error.path.split(".") if field]
        yield document.remark(Level.ERROR, (*path, "parameters", *fields), error.problem)
        return
    if "sharing" in parameters and "sharing" not in made:
        message = "TimeSlicing has no effect on slices there, and none here: it is left out"
        yield document.remark(Level.WARNING, (*path, "parameters", "sharing"), message)
    opaque |= {"driver": DEFAULT_DRIVER, "parameters": made}
