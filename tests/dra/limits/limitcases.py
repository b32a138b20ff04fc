"""Pods that ask by limits, and what becomes of them: one table for all that rewrites them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dra.common.resources import Obj

IMAGE = "busybox"


@dataclass(frozen=True, slots=True)
class Case:
    """``limits`` of containers (``i:`` an init container, ``s:`` a sidecar) and what is expected.

    ``claims``: of the pod, as ``name=template``. ``given``: the claims of each container.
    ``left``: the limits that stay, by container.
    """

    name: str
    limits: dict[str, dict[str, Any]]
    claims: list[str] = field(default_factory=list)
    given: dict[str, list[str]] = field(default_factory=dict)
    left: dict[str, dict[str, str]] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


S = "nvidia.com/mig-1g.5gb"
M = "nvidia.com/mig-3g.20gb"
GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
PERCENT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"


def _slices(*numbers: int, kind: str = "1g.5gb") -> list[str]:
    dashed = kind.replace(".", "-")
    return [f"mig-{dashed}-{n}=nvidia.com-mig-{kind}" for n in numbers]


_LEFT_ALONE: dict[str, dict[str, Any]] = {
    "nothing": {"cpu": "1"},
    "a whole GPU": {GPU: 1, "nvidia.com/priority": 1},
    "more than all of the memory": {GPU: 1, PERCENT: 101},
    "more than all cores": {GPU: 1, CORES: 101},
    "cores and no memory": {GPU: 1, CORES: 30, PERCENT: 0},
    "a percentage of too many": {GPU: 65, PERCENT: 50},
    "a slice that is shared by time": {"nvidia.com/mig-1g.5gb.shared": 1},
    "a compute instance": {"nvidia.com/mig-1c.3g.20gb": 1},
    "none": {S: 0},
    "more than there can be": {S: 65},
    "no memory": {GPU: 1, MEM: 0},
}

CASES = [
    Case("one", {"a": {S: 1}}, _slices(0), {"a": ["mig-1g-5gb-0"]}),
    Case(
        "with all media engines, and without any",
        {"a": {"nvidia.com/mig-1g.24gb.me.all": 1, "nvidia.com/mig-1g.24gb-me": 1}},
        [
            "mig-1g-24gb-no-me-0=nvidia.com-mig-1g.24gb-me",
            "mig-1g-24gb-me-all-0=nvidia.com-mig-1g.24gb.me.all",
        ],
        {"a": ["mig-1g-24gb-no-me-0", "mig-1g-24gb-me-all-0"]},
    ),
    Case(
        "several, and what else there is stays",
        {"a": {S: 2, "cpu": "500m", "example.com/nic": 1}},
        _slices(0, 1),
        {"a": ["mig-1g-5gb-0", "mig-1g-5gb-1"]},
        {"a": {"cpu": "500m", "example.com/nic": "1"}},
    ),
    Case(
        "each container has its own",
        {"a": {S: 1}, "b": {}, "c": {S: 1, M: 1}},
        [*_slices(0, 1), *_slices(0, kind="3g.20gb")],
        {"a": ["mig-1g-5gb-0"], "c": ["mig-1g-5gb-1", "mig-3g-20gb-0"]},
    ),
    Case(
        "an init container has what main containers get later",
        {"i:first": {S: 1}, "i:second": {S: 2}, "a": {S: 1}, "b": {S: 1}},
        _slices(0, 1),
        {
            "i:first": ["mig-1g-5gb-0"],
            "i:second": ["mig-1g-5gb-0", "mig-1g-5gb-1"],
            "a": ["mig-1g-5gb-0"],
            "b": ["mig-1g-5gb-1"],
        },
    ),
    Case(
        "an init container that needs most",
        {"i:first": {S: 3}, "a": {S: 1}},
        _slices(0, 1, 2),
        {"i:first": ["mig-1g-5gb-0", "mig-1g-5gb-1", "mig-1g-5gb-2"], "a": ["mig-1g-5gb-0"]},
    ),
    Case(
        "a sidecar keeps its slice from those that start after it",
        {"i:before": {S: 1}, "s:side": {S: 1}, "i:after": {S: 2}, "a": {S: 1}},
        _slices(0, 1, 2),
        {
            "i:before": ["mig-1g-5gb-0"],
            "s:side": ["mig-1g-5gb-0"],
            "i:after": ["mig-1g-5gb-1", "mig-1g-5gb-2"],
            "a": ["mig-1g-5gb-1"],
        },
    ),
    Case(
        "a profile with media extensions",
        {"a": {"nvidia.com/mig-1g.5gb.me": 1}},
        ["mig-1g-5gb-me-0=nvidia.com-mig-1g.5gb.me"],
        {"a": ["mig-1g-5gb-me-0"]},
    ),
    Case(
        "by memory",
        {"a": {GPU: 2, MEM: 8000, "nvidia.com/gpucores": 30, "nvidia.com/priority": 0}},
        [f"gpumem-8000-{n}=nvidia.com-gpumem-8000" for n in (0, 1)],
        {"a": ["gpumem-8000-0", "gpumem-8000-1"]},
    ),
    Case(
        "by memory without a number, with a percentage that does not count",
        {"a": {MEM: "4k", "nvidia.com/gpumem-percentage": 50, "memory": "1Gi"}},
        ["gpumem-4000-0=nvidia.com-gpumem-4000"],
        {"a": ["gpumem-4000-0"]},
        {"a": {"memory": "1Gi"}},
    ),
    Case(
        "by a percentage of the memory",
        {"a": {GPU: 2, PERCENT: 50, CORES: 30}, "b": {PERCENT: 100}},
        [
            "gpumem-percentage-100-0=nvidia.com-gpumem-percentage-100",
            *(f"gpumem-percentage-50-{n}=nvidia.com-gpumem-percentage-50" for n in (0, 1)),
        ],
        {
            "a": ["gpumem-percentage-50-0", "gpumem-percentage-50-1"],
            "b": ["gpumem-percentage-100-0"],
        },
    ),
    Case(
        "by cores alone, which are those of all the memory",
        {"a": {GPU: 1, CORES: 30}},
        ["gpumem-percentage-100-0=nvidia.com-gpumem-percentage-100"],
        {"a": ["gpumem-percentage-100-0"]},
    ),
    Case(
        "by memory, in two containers of unlike sizes",
        {"a": {GPU: 1, MEM: 8000}, "b": {GPU: 1, MEM: 3000}},
        ["gpumem-3000-0=nvidia.com-gpumem-3000", "gpumem-8000-0=nvidia.com-gpumem-8000"],
        {"a": ["gpumem-8000-0"], "b": ["gpumem-3000-0"]},
    ),
    Case(
        "with both policies",
        {"a": {GPU: 1, MEM: 8000}},
        ["gpumem-8000-node-binpack-gpu-spread-0=nvidia.com-gpumem-8000-node-binpack-gpu-spread"],
        {"a": ["gpumem-8000-node-binpack-gpu-spread-0"]},
        annotations={
            "hami.io/node-scheduler-policy": "binpack",
            "hami.io/gpu-scheduler-policy": "spread",
        },
    ),
    Case(
        "with one policy, and another word",
        {"a": {S: 1}},
        ["mig-1g-5gb-gpu-binpack-0=nvidia.com-mig-1g.5gb-gpu-binpack"],
        {"a": ["mig-1g-5gb-gpu-binpack-0"]},
        annotations={
            "hami.io/node-scheduler-policy": "topology-aware",
            "hami.io/gpu-scheduler-policy": "binpack",
        },
    ),
    *(
        Case(name, {"a": limits}, left={"a": {k: str(v) for k, v in limits.items()}})
        for name, limits in _LEFT_ALONE.items()
    ),
]


def pod_of(case: Case, name: str = "p") -> Obj:
    """The pod as its owner writes it, with requests as the API server's defaults have them."""
    spec: Obj = {"containers": []}
    for key, limits in case.limits.items():
        kind, _, bare = key.rpartition(":")
        amounts = {k: str(v) for k, v in limits.items()}
        resources = {"limits": amounts, "requests": dict(amounts)} if limits else {}
        container: Obj = {"name": bare, "image": IMAGE, "resources": resources}
        if kind == "s":
            container["restartPolicy"] = "Always"
        spec.setdefault("initContainers" if kind else "containers", []).append(container)
    metadata = {"name": name, "namespace": "default", "annotations": dict(case.annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def seen(pod: Obj) -> tuple[list[str], dict[str, list[str]], dict[str, dict[str, Obj]]]:
    """Claims of a pod, claims of its containers, and what is left of limits and requests."""
    spec = pod["spec"]
    claims = [
        f"{each['name']}={each['resourceClaimTemplateName']}"
        for each in spec.get("resourceClaims") or ()
    ]
    given, left = {}, {}
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            if names := [c["name"] for c in resources.get("claims") or ()]:
                given[container["name"]] = names
            kept = {part: resources.get(part) or {} for part in ("limits", "requests")}
            if any(kept.values()):
                left[container["name"]] = kept
    return claims, given, left


def expected(case: Case) -> tuple[list[str], dict[str, list[str]], dict[str, dict[str, Obj]]]:
    """The same, as the table has it."""

    def bare(name: str) -> str:
        return name.rpartition(":")[2]

    given = {bare(name): claims for name, claims in case.given.items()}
    left = {bare(name): {"limits": kept, "requests": kept} for name, kept in case.left.items()}
    return case.claims, given, left
