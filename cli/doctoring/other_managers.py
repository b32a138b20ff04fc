"""Checks of other drivers of the same GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from cli.doctoring.checks import Check, fail, of_node, ok, unknown, warn
from cli.doctoring.evidence import Evidence
from cli.shell.output import named
from dra.claims.classes import holders, is_generated
from dra.claims.reasons import NodeReason
from dra.common.resources import PODS
from dra.gpu.inventory import AllocatorKind
from dra.gpu.names import class_name, extended_resource_name
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver

_DCGM = "dcgm"
_APART = (
    f"keep it off these nodes: {DEPLOY_LABEL}=false where the GPU operator installs it, the node "
    "affinity of its chart otherwise"
)


def drivers(evidence: Evidence) -> Iterator[Check]:
    """NVIDIA's DRA driver is on no node that offers slices."""
    if evidence.nvidia_slices is None:
        yield unknown("other-managers", "ResourceSlices may not be read")
        return
    bodies = {body["metadata"]["name"]: body for body in evidence.nodes}
    apart = True
    for node in evidence.facts.site.nodes:
        name = node.name
        found = dra_driver(bodies.get(name, {}), evidence.nvidia_slices.get(name, ()))
        if found is None:
            continue
        apart = False
        harm = (
            "destroys slices that it does not know"
            if found.makes_devices
            else "gives out GPUs and slices that it finds"
        )
        seen = any(v.gpu.reason == NodeReason.NVIDIA_DRA for v in node.gpus)
        check = fail(
            "other-managers",
            f"NVIDIA's DRA driver is on node {name} too ({found.sign}) and {harm}; "
            + ("nothing is offered there" if seen else "the plugin offers GPUs there all the same"),
            _APART if seen else f"{_APART}; --ignore-other-managers is for other GPUs only",
        )
        yield of_node(check, name)
    if apart:
        yield ok("other-managers", "NVIDIA's DRA driver is on no node with slices")


def monitors(evidence: Evidence) -> Iterator[Check]:
    """DCGM is on no node with slices: it keeps those in use that it watches (NVIDIA/DCGM#276)."""
    nodes = {node.name for node in evidence.facts.site.nodes}
    running = {
        str(pod.obj["spec"].get("nodeName", ""))
        for pod in evidence.facts.pods.values()
        if any(_DCGM in c.get("image", "") for c in pod.obj["spec"].get("containers") or ())
    }
    if found := sorted(nodes & running):
        yield warn(
            "monitors",
            f"DCGM runs on node {named(found)}: a slice that it watches may not be removed, and "
            "its placement is unavailable then",
            f"where slices come and go keep it off: kubectl label node {found[0]} --overwrite "
            "nvidia.com/gpu.deploy.dcgm=false nvidia.com/gpu.deploy.dcgm-exporter=false where the "
            "GPU operator installs it, the node affinity of its chart otherwise; if it is to stay, "
            "watch mig_dra_unavailable_placements",
        )
    elif str(PODS) in evidence.facts.unread:
        yield unknown("monitors", "pods may not be read")
    else:
        yield ok("monitors", "DCGM is on no node with slices")


def extended_resources(evidence: Evidence) -> Iterator[Check]:
    """No class of somebody else has an extended resource that ours is to serve."""
    site = evidence.facts.site
    if all(n.inventory.allocator is AllocatorKind.CONTROLLER for n in site.nodes):
        return  # ours serve none
    ours = {
        c["metadata"]["name"]
        for c in evidence.class_objects
        if is_generated(c, evidence.facts.driver)
    }
    profiles = {p.name for v in site.gpus if v.gpu.geometry for p in v.gpu.geometry.profiles}
    resources = {extended_resource_name(p) for p in profiles if class_name(p) in ours}
    taken = holders(evidence.class_objects, evidence.facts.driver)
    held = [
        f"{resource} by {taken[resource]['metadata']['name']}"
        for resource in sorted(resources & taken.keys())
    ]
    if held:
        yield warn(
            "extended",
            f"classes of somebody else serve extended resources, not ours: {named(held)}",
            "delete those classes, or their extendedResourceName, if this driver is to serve them",
        )
    else:
        yield ok("extended", f"our classes serve {len(resources)} extended resources")
