"""Rewriting of a pod: its limits for slices become claims, made from templates.

The slices of one kind are numbered over the pod. Containers get them by Kubernetes' rule for
extended resources: sidecars and main containers keep their slices; those of an init container that
ends may be used again by containers that start after it. So a pod has ``max(init), sum(main)``
slices, whichever is more. Each slice is a claim of its own, because a container names a claim only
once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from api.config import API_VERSION, KIND
from dra.claims.classes import ANY_SLICE_CLASS, generated_label
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, Obj, at
from dra.gpu.names import extended_resource_name
from dra.limits.asks import asks, preferences, served

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the pods that a kubelet made by itself: they may have no claims."""


def rewritten(pod: Obj) -> Obj:
    """The pod with claims instead of limits for slices; ``pod`` itself is not changed."""
    made = copy.deepcopy(pod)
    annotations = at(made, "metadata", "annotations", default={})
    places = [*_places(made)]
    asked = [asks(container, preferences(annotations)) for container, _ in places]
    kinds = sorted({kind for each in asked for kind in each})
    if not kinds or MIRROR in annotations:
        return made
    taken, sizes = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    for (container, lasting), wanted in zip(places, asked, strict=True):
        if wanted:
            _claim_slices(container, wanted, taken)
        for kind, count in wanted.items():
            sizes[kind] = max(sizes[kind], taken[kind] + count)
            taken[kind] += count if lasting else 0
    claims = made["spec"]["resourceClaims"] = [*at(made, "spec", "resourceClaims")]
    claims += [
        {"name": entry_name(kind, number), "resourceClaimTemplateName": kind}
        for kind, size in sizes.items()
        for number in range(size)
    ]
    return made


def entry_name(template: str, number: int) -> str:
    """Name of a claim within its pod: ``mig-1g-5gb-0`` of template ``nvidia.com-mig-1g.5gb``.

    ``mig-1g.24gb-me`` is one without media engines, ``mig-1g.24gb.me`` one with all: no two alike.
    """
    kind = template.removeprefix("nvidia.com-").replace("gb-me", "gb-no-me")
    return f"{kind.replace('.', '-')}-{number}"


def _places(pod: Obj) -> Iterator[tuple[Obj, bool]]:
    """The containers in the order of their starts, and whether each runs as long as the pod."""
    for container in at(pod, "spec", "initContainers"):
        yield container, container.get("restartPolicy") == "Always"
    for container in at(pod, "spec", "containers"):
        yield container, True


def _claim_slices(container: Obj, wanted: Mapping[str, int], taken: Mapping[str, int]) -> None:
    """Replace a container's limits by claims, numbered behind those that are ``taken``."""
    resources = container["resources"]
    for name in served(container):
        for part in ("limits", "requests"):
            at(resources, part, default={}).pop(name, None)
    claims = resources["claims"] = [*at(resources, "claims")]
    for kind, count in sorted(wanted.items()):
        first = taken[kind]
        claims += [{"name": entry_name(kind, first + number)} for number in range(count)]


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
    """HAMi's policies as ours; like HAMi, the policy of nodes looks at their GPUs alone."""
    placement: dict[str, Any] = {"policy": _POLICIES[gpus]} if gpus else {}
    if nodes:
        placement["nodes"] = {"policy": nodes, "by": ["gpu-memory"]}
    return placement
