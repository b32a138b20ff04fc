"""Rewriting of a pod: its limits for slices become claims, made from templates.

The slices of one kind are numbered over the pod. Which a container gets follows what Kubernetes
says of extended resources: sidecars and main containers keep theirs, an init container that ends
may have what those get that start after it. So a pod has as many as ``max(init), sum(main)``, and
each slice is a claim of its own, because a container names a claim only once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from api.config import API_VERSION, KIND
from dra.claims.classes import ANY_SLICE_CLASS, generated_label
from dra.common.resources import RESOURCE_CLAIM_TEMPLATES, Obj, at
from dra.gpu.names import extended_resource_name
from dra.limits.asks import asks, preferences, served

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of the pods that a kubelet made by itself: they may have no claims."""


def rewriting(pod: Obj) -> list[Obj]:
    """JSON patch (RFC 6902) of ``pod``; empty where it asks for nothing by limits."""
    annotations = at(pod, "metadata", "annotations", default={})
    places = [*_places(pod)]
    asked = [asks(container, preferences(annotations)) for _, container, _ in places]
    kinds = sorted({kind for each in asked for kind in each})
    if not kinds or MIRROR in annotations:
        return []
    starts: list[dict[str, int]] = []
    taken = dict.fromkeys(kinds, 0)
    for (_, _, lasting), wanted in zip(places, asked, strict=True):
        starts.append(dict(taken))
        for kind, count in wanted.items() if lasting else ():
            taken[kind] += count
    sizes = {
        kind: max(s[kind] + w.get(kind, 0) for s, w in zip(starts, asked, strict=True))
        for kind in kinds
    }
    steps = [] if at(pod, "spec").get("resourceClaims") else [_add("/spec/resourceClaims", [])]
    steps += [
        _add(
            "/spec/resourceClaims/-",
            {"name": entry_name(kind, number), "resourceClaimTemplateName": kind},
        )
        for kind, size in sizes.items()
        for number in range(size)
    ]
    for (path, container, _), wanted, start in zip(places, asked, starts, strict=True):
        steps += _of_container(path, container, wanted, start) if wanted else []
    return steps


def rewritten(pod: Obj) -> Obj:
    """The pod with that patch applied; ``pod`` itself stays."""
    made = copy.deepcopy(pod)
    for step in rewriting(pod):
        *steps, last = (
            each.replace("~1", "/").replace("~0", "~") for each in step["path"][1:].split("/")
        )
        holder: Any = made
        for each in steps:
            holder = holder[int(each)] if isinstance(holder, list) else holder[each]
        if step["op"] == "remove":
            del holder[last]
        elif last == "-":
            holder.append(copy.deepcopy(step["value"]))
        else:
            holder[last] = copy.deepcopy(step["value"])
    return made


def entry_name(template: str, number: int) -> str:
    """Name of a claim within its pod: ``mig-1g-5gb-0`` of template ``nvidia.com-mig-1g.5gb``.

    ``mig-1g.24gb-me`` is one without media engines, ``mig-1g.24gb.me`` one with all: no two alike.
    """
    kind = template.removeprefix("nvidia.com-").replace("gb-me", "gb-no-me")
    return f"{kind.replace('.', '-')}-{number}"


def _places(pod: Obj) -> Iterator[tuple[str, Obj, bool]]:
    """Path and content of each container in the order of their starts, and whether it lasts."""
    for index, container in enumerate(at(pod, "spec", "initContainers")):
        lasting = container.get("restartPolicy") == "Always"
        yield f"/spec/initContainers/{index}", container, lasting
    for index, container in enumerate(at(pod, "spec", "containers")):
        yield f"/spec/containers/{index}", container, True


def _of_container(
    path: str, container: Obj, wanted: dict[str, int], start: dict[str, int]
) -> Iterator[Obj]:
    resources = at(container, "resources", default={})
    for part in ("limits", "requests"):
        for name in sorted(served(container) & at(resources, part, default={}).keys()):
            escaped = name.replace("~", "~0").replace("/", "~1")
            yield {"op": "remove", "path": f"{path}/resources/{part}/{escaped}"}
    if not resources.get("claims"):
        yield _add(f"{path}/resources/claims", [])
    for kind, count in sorted(wanted.items()):
        for number in range(start[kind], start[kind] + count):
            yield _add(f"{path}/resources/claims/-", {"name": entry_name(kind, number)})


def _add(path: str, value: object) -> Obj:
    return {"op": "add", "path": path, "value": value}


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
