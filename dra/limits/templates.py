"""Templates of the claims that limits become. Their name says all: ``nvidia.com-gpumem-8000``."""

from __future__ import annotations

import re
from typing import Any

from api.config import API_VERSION, KIND
from dra.claims.classes import ANY_SLICE_CLASS, generated_label
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, Obj
from dra.gpu.names import extended_resource_name

LABEL_VALUE = "claims"
"""Value of the label by which a namespace opts in."""

_NAME = re.compile(
    r"nvidia\.com-(?:(?P<profile>mig-[1-9][0-9]*g\.[1-9][0-9]*gb(?:\.[a-z]+)*(?:-me)?)"
    r"|gpumem-(?P<memory>[1-9][0-9]{0,8})|gpumem-percentage-(?P<percent>100|[1-9][0-9]?))"
    r"(?:-node-(?P<nodes>binpack|spread))?(?:-gpu-(?P<gpus>binpack|spread))?"
)
_POLICIES = {"binpack": "best-fit", "spread": "spread"}
"""The placement policy of a word of HAMi's for GPUs."""


def opt_in_label(driver: str) -> str:
    """The label by which a namespace opts in; its value is ``LABEL_VALUE``."""
    return f"{driver}/limits"


def template_name(profile: str) -> str:
    """Template of one slice of a profile: ``nvidia.com-mig-1g.5gb``."""
    return extended_resource_name(profile).replace("/", "-")


def is_template_name(name: str) -> bool:
    """True for a name that ``template`` knows."""
    return _NAME.fullmatch(name) is not None


def template(name: str, namespace: str, *, driver: str) -> Obj:
    """The ResourceClaimTemplate of that name, for apply.

    Raises:
        ValueError: the name is none of ours.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no template for limits")
    exactly: dict[str, Any] = {"deviceClassName": found["profile"] or ANY_SLICE_CLASS}
    if found["memory"]:
        memory = f"device.capacity['{driver}'].memory"
        expression = f"{memory}.compareTo(quantity('{found['memory']}Mi')) >= 0"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    if found["percent"]:
        attribute = f"device.attributes['{driver}'].memoryPercent"
        exactly["selectors"] = [{"cel": {"expression": f"{attribute} >= {found['percent']}"}}]
    devices: dict[str, Any] = {"requests": [{"name": "slice", "exactly": exactly}]}
    if placement := _placement(found["nodes"], found["gpus"]):
        parameters = {"apiVersion": API_VERSION, "kind": KIND, "placement": placement}
        devices["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {generated_label(driver): "true"},
        },
        "spec": {"spec": {"devices": devices}},
    }


def _placement(nodes: str | None, gpus: str | None) -> dict[str, Any]:
    """HAMi's policies as ours. It judges nodes by their GPUs alone."""
    placement: dict[str, Any] = {"policy": _POLICIES[gpus]} if gpus else {}
    if nodes:
        placement["nodes"] = {"policy": nodes, "by": ["gpu-memory"]}
    return placement
