"""Pods that ask for slices by limits, as they did of the device plugin or of HAMi."""

from __future__ import annotations

from collections.abc import Mapping

from cli.explaining.facts import ClusterFacts
from cli.explaining.model import Finding, Why
from cli.explaining.waiting import finding
from dra.common.resources import at
from dra.gpu.inventory import AllocatorKind
from dra.limits.asks import CORES, GPUS, MEMORY
from dra.limits.others import GPUS_ALONE
from dra.pods.pods import Pod, with_claim

PREFIX = "nvidia.com/mig-"
_ENTRY = "(limits)"


def asked_by_limits(pod: Pod) -> Mapping[str, str]:
    """Limits of its containers by which other systems give slices, each with its amount."""
    containers = [*at(pod.obj, "spec", "initContainers"), *at(pod.obj, "spec", "containers")]
    return {
        name: str(number)
        for container in containers
        for name, number in at(container, "resources", "limits", default={}).items()
        if name == GPUS or name.startswith((PREFIX, MEMORY, CORES))
    }


def with_extended(pod: Pod) -> Pod:
    """The pod with the claim that kube-scheduler made for its extended resources, if it did."""
    made = at(pod.obj, "status", "extendedResourceClaimStatus", default={})
    name = made.get("resourceClaimName")
    return with_claim(pod, _ENTRY, name) if name else pod


def about_limits(limits: Mapping[str, str], facts: ClusterFacts) -> Finding:
    """Finding about a pod that asks so and has no claim."""
    asked = ", ".join(f"{name}: {number}" for name, number in sorted(limits.items()))
    if set(limits) == {GPUS}:
        return Finding(Why.BY_LIMITS, f"the pod has no resource claim but {asked}: {GPUS_ALONE}")
    nodes = [
        n.name for n in facts.site.nodes if n.inventory.allocator is not AllocatorKind.CONTROLLER
    ]
    served = f"those are {', '.join(nodes)}" if nodes else "this cluster has none"
    profiles = [name for name in limits if name.startswith(PREFIX)]
    if not profiles:
        there = "That is served only as claims, which they become in namespaces that opt in"
    else:
        classes = ", ".join(sorted(name.partition("/")[2] for name in profiles))
        there = (
            f"That is served only on nodes that kube-scheduler allocates (--allocator=scheduler): "
            f"{served}. As a claim it would be class {classes}"
        )
    return finding(
        Why.BY_LIMITS, f"the pod has no resource claim and asks by limits: {asked}. {there}"
    )
