"""Pods that ask for slices as they did of the device plugin, by ``limits: nvidia.com/mig-...``."""

from __future__ import annotations

from collections.abc import Mapping

from cli.explaining.facts import ClusterFacts
from cli.explaining.model import Finding, Why
from cli.explaining.waiting import finding
from dra.common.resources import at
from dra.gpu.inventory import AllocatorKind
from dra.pods.pods import Pod, with_claim

PREFIX = "nvidia.com/mig-"
_ENTRY = "(limits)"


def asked_by_limits(pod: Pod) -> Mapping[str, str]:
    """The extended resources of MIG profiles that its containers ask for, with how many."""
    containers = [*at(pod.obj, "spec", "initContainers"), *at(pod.obj, "spec", "containers")]
    return {
        name: str(number)
        for container in containers
        for name, number in at(container, "resources", "limits", default={}).items()
        if name.startswith(PREFIX)
    }


def with_extended(pod: Pod) -> Pod:
    """The pod with the claim that kube-scheduler made for its extended resources, if it did."""
    made = at(pod.obj, "status", "extendedResourceClaimStatus", default={})
    name = made.get("resourceClaimName")
    return with_claim(pod, _ENTRY, name) if name else pod


def about_limits(limits: Mapping[str, str], facts: ClusterFacts) -> Finding:
    """Finding about a pod that asks so and has no claim."""
    asked = ", ".join(f"{name}: {number}" for name, number in sorted(limits.items()))
    nodes = [
        n.name for n in facts.site.nodes if n.inventory.allocator is not AllocatorKind.CONTROLLER
    ]
    served = f"those are {', '.join(nodes)}" if nodes else "this cluster has none"
    classes = ", ".join(sorted(name.partition("/")[2] for name in limits))
    return finding(
        Why.BY_LIMITS,
        f"the pod has no resource claim and asks by limits: {asked}. That is served only on nodes "
        f"that kube-scheduler allocates (--allocator=scheduler): {served}. As a claim it would be "
        f"class {classes}",
    )
