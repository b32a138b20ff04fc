"""Conversion of claims, templates and classes for NVIDIA's DRA driver to those for this one.

Fields: ``api/nvidia.com/resource/v1beta1`` and ``demo/specs`` of NVIDIA/k8s-dra-driver-gpu.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from api.config import translated
from api.errors import InvalidObjectError
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from cli.linting.shapes import CLASS, DEVICES, misshapen
from dra.claims.classes import (
    ANY_SLICE_CLASS,
    GPU_CLASS,
    NVIDIA_GPU_CLASS,
    NVIDIA_SLICE_CLASS,
    SHARE_CLASS,
    SLICE_SHARE_CLASS,
)
from dra.common.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
)
from dra.gpu.names import NVIDIA_DRIVER as DRIVER

_CLASSES: Final = {
    NVIDIA_GPU_CLASS: (GPU_CLASS, SHARE_CLASS),
    NVIDIA_SLICE_CLASS: (ANY_SLICE_CLASS, SLICE_SHARE_CLASS),
}
"""By class there, the class here of a device that one claim has alone, and of a share of one."""
_DEVICES: Final = (
    (RESOURCE_CLAIMS, ("spec", "devices"), DEVICES),
    (RESOURCE_CLAIM_TEMPLATES, ("spec", "spec", "devices"), DEVICES),
    (DEVICE_CLASSES, ("spec",), CLASS),
)


def becomes(document: Document, driver: str, classes: Collection[str]) -> Iterator[Remark]:
    """The counterpart of a claim or class for NVIDIA's DRA driver, and its parts without one."""
    if driver == DRIVER:
        return
    made = replace(document, obj=deepcopy(document.obj))
    remarks = [*convert_claim(made, driver, classes)]
    if remarks or made.obj != document.obj:
        message = (
            "it is for NVIDIA's DRA driver, and this one leaves it alone; kubectl mig convert "
            "prints it for this one"
        )
        yield document.remark(Level.WARNING, ("spec",), message)
        yield from (each for each in remarks if each.level is not Level.HINT)


def convert_claim(document: Document, driver: str, classes: Collection[str]) -> Iterator[Remark]:
    """Change a claim, template or class for NVIDIA's DRA driver, in place, to one of ``driver``.

    ``classes``: names of the DeviceClasses that are converted with it.
    """
    found = next(((at, shape) for kind, at, shape in _DEVICES if document.is_a(kind)), None)
    if found is None:
        return
    at, shape = found
    if text(document.obj, "apiVersion").startswith("resource.k8s.io/v1alpha"):
        message = (
            "classes and parameters of drivers left Kubernetes with 1.32: write requests as in "
            "resource.k8s.io/v1 (NVIDIA's demo/specs/quickstart/v1), and convert those"
        )
        yield document.remark(Level.ERROR, ("apiVersion",), message)
        return
    devices = mapping(document.obj, *at)
    whole, around = (document.obj, ()) if shape is CLASS else (devices, at)
    if remark := misshapen(document, around, whole, shape):
        yield remark
        return
    _nest(document.obj, devices)
    _convert_constraints(devices, driver)
    for index, request in entries(devices, "requests"):
        path: Path = (*at, "requests", index)
        for body in (request.get("exactly"), *(a for _, a in entries(request, "firstAvailable"))):
            if isinstance(body, dict):
                yield from _convert_body(document, path, body, driver, classes)
    if shape is CLASS:
        yield from _convert_selectors(document, at, devices, driver)
    for index, entry in entries(devices, "config"):
        opaque = mapping(entry, "opaque")
        if text(opaque, "driver") == DRIVER:
            yield from _convert_config(document, (*at, "config", index, "opaque"), opaque, driver)


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


def _convert_constraints(devices: dict[str, Any], driver: str) -> None:
    for _, constraint in entries(devices, "constraints"):
        for field in ("matchAttribute", "distinctAttribute"):
            domain, _, attribute = text(constraint, field).partition("/")
            if domain == DRIVER:
                constraint[field] = f"{driver}/{attribute}"


def _convert_body(
    document: Document, path: Path, body: dict[str, Any], driver: str, classes: Collection[str]
) -> Iterator[Remark]:
    name = text(body, "deviceClassName")
    if name in _CLASSES:
        alone, share = _CLASSES[name]
        body["deviceClassName"] = alone
        amounts = mapping(body, "capacity", "requests")
        for key in [*amounts]:
            domain, _, capacity = key.rpartition("/")
            if domain == DRIVER:
                amounts[f"{driver}/{capacity}"] = amounts.pop(key)
            if domain in ("", DRIVER) and capacity in ("memory", "shares"):
                body["deviceClassName"] = share
                message = (
                    "it asks for a part of a device (--consumable-shares) and becomes class "
                    f"{share}, which nodes with shares have; for one alone take capacity away"
                )
                yield document.remark(Level.WARNING, path, message)
            if domain in ("", DRIVER) and capacity == "shares":
                count = amounts.pop(f"{driver}/{capacity}" if domain else key)
                if str(count) != "1":
                    message = f"a claim has one share of a device, not {count}: say memory or cores"
                    yield document.remark(Level.ERROR, path, message)
        if body["deviceClassName"] == GPU_CLASS:
            message = (
                "a GPU for this claim alone; where NVIDIA's driver shares them by "
                f"--consumable-shares, write class {share}"
            )
            yield document.remark(Level.HINT, path, message)
    elif name.endswith(".nvidia.com") and name not in classes:
        known = ", ".join(alone for alone, _ in _CLASSES.values())
        message = f"class {name!r} has no counterpart here; there are: {known}"
        yield document.remark(Level.ERROR, (*path, "deviceClassName"), message)
    yield from _convert_selectors(document, path, body, driver)


def _convert_selectors(
    document: Document, path: Path, body: dict[str, Any], driver: str
) -> Iterator[Remark]:
    for index, selector in entries(body, "selectors"):
        cel = mapping(selector, "cel")
        if DRIVER in text(cel, "expression"):
            cel["expression"] = text(cel, "expression").replace(DRIVER, driver)
            message = (
                "the driver's name is exchanged; whether this driver's devices have these "
                "attributes shows kubectl mig lint"
            )
            yield document.remark(Level.HINT, (*path, "selectors", index, "cel"), message)


def _convert_config(
    document: Document, path: Path, opaque: dict[str, Any], driver: str
) -> Iterator[Remark]:
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
    opaque |= {"driver": driver, "parameters": made}
