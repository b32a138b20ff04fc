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
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, steps, text
from cli.linting.shapes import about_devices, nest
from dra.claims.classes import (
    ANY_SLICE_CLASS,
    GPU_CLASS,
    NVIDIA_GPU_CLASS,
    NVIDIA_SLICE_CLASS,
    SHARE_CLASS,
    SLICE_SHARE_CLASS,
)
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.names import NVIDIA_DRIVER as DRIVER

_CLASSES: Final = {
    NVIDIA_GPU_CLASS: (GPU_CLASS, SHARE_CLASS),
    NVIDIA_SLICE_CLASS: (ANY_SLICE_CLASS, SLICE_SHARE_CLASS),
}
"""By class there, the class here of a device that one claim has alone, and of a share of one."""
_NAMING = {"expression", "matchAttribute", "distinctAttribute"}
"""Fields with names of attributes, which begin with the driver's."""
_PART = ("memory", "shares")
"""Capacities there of which a claim gets a part of a device."""


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
        yield from remarks


def convert_claim(document: Document, driver: str, classes: Collection[str]) -> Iterator[Remark]:
    """Change a claim, template or class for NVIDIA's DRA driver, in place, to one of ``driver``.

    ``classes``: names of the DeviceClasses that are converted with it.
    """
    for read in about_devices(document):
        if text(document.obj, "apiVersion").startswith("resource.k8s.io/v1alpha"):
            message = (
                "classes and parameters of drivers left Kubernetes with 1.32: write requests as in "
                "resource.k8s.io/v1 (NVIDIA's demo/specs/quickstart/v1), and convert those"
            )
            yield document.remark(Level.ERROR, ("apiVersion",), message)
        elif isinstance(read, Remark):
            yield read
        else:
            yield from _convert(document, read[1], driver, classes)


def _convert(
    document: Document, at: Path, driver: str, classes: Collection[str]
) -> Iterator[Remark]:
    devices = mapping(document.obj, *map(str, at))
    named = [text(request, "deviceClassName") for _, request in entries(devices, "requests")]
    if any(name.endswith(".nvidia.com") for name in named):  # as v1beta1 has it
        document.obj["apiVersion"] = RESOURCE_CLAIMS.api_version
        nest(devices)
    for path, found in [*document.mappings]:
        if path[: len(at)] != at or "parameters" in path:
            continue
        if "deviceClassName" in found:
            yield from _convert_class(document, path, found, driver, classes)
        for field in _NAMING & found.keys():
            found[field] = text(found, field).replace(DRIVER, driver)
        if text(found, "driver") == DRIVER:
            yield from _convert_config(document, path, found, driver)


def _convert_class(
    document: Document, path: Path, body: dict[str, Any], driver: str, classes: Collection[str]
) -> Iterator[Remark]:
    name = text(body, "deviceClassName")
    if name not in _CLASSES:
        if name.endswith(".nvidia.com") and name not in classes:
            known = ", ".join(alone for alone, _ in _CLASSES.values())
            message = f"class {name!r} has no counterpart here; there are: {known}"
            yield document.remark(Level.ERROR, (*path, "deviceClassName"), message)
        return
    alone, share = _CLASSES[name]
    amounts = mapping(body, "capacity", "requests")
    theirs = {key.removeprefix(f"{DRIVER}/"): key for key in amounts}
    body["deviceClassName"] = share if theirs.keys() & _PART else alone
    count = amounts.pop(theirs.pop("shares", ""), 1)
    for capacity, key in theirs.items():
        if key != capacity:
            amounts[f"{driver}/{capacity}"] = amounts.pop(key)
    if body["deviceClassName"] == share:
        message = (
            f"it asks for a part of a device (--consumable-shares) and becomes class {share}, "
            "which nodes with shares have; for one alone take capacity away"
        )
        yield document.remark(Level.WARNING, path, message)
    if str(count) != "1":
        message = f"a claim has one share of a device, not {count}: say memory or cores"
        yield document.remark(Level.ERROR, path, message)


def _convert_config(
    document: Document, path: Path, opaque: dict[str, Any], driver: str
) -> Iterator[Remark]:
    parameters = mapping(opaque, "parameters")
    try:
        made = translated(parameters)
    except InvalidObjectError as error:
        where = (*path, "parameters", *steps(parameters, error.path))
        yield document.remark(Level.ERROR, where, error.problem)
        return
    if "sharing" in parameters and "sharing" not in made:
        message = "TimeSlicing has no effect on slices there, and none here: it is left out"
        yield document.remark(Level.WARNING, (*path, "parameters", "sharing"), message)
    opaque |= {"driver": driver, "parameters": made}
