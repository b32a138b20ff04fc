"""Checks of what was installed into the cluster, and of DCGM beside it."""

from __future__ import annotations

from collections.abc import Iterator

from cli.doctoring.examination import Check, Evidence, fail, ok, unknown, warn
from cli.output import counted, named
from cli.site import NodeView
from dra.claims.classes import (
    ANY_SLICE_CLASS,
    GPU_CLASS,
    how_to_make_way,
    is_generated,
    offered_profiles,
)
from dra.common.program import page
from dra.common.resources import PODS
from dra.gpu.names import class_name

_DCGM = "dcgm"


def kubernetes(evidence: Evidence) -> Iterator[Check]:
    """Tell the server's version."""
    yield ok(f"Kubernetes {evidence.version or 'of unknown version'}")


def definition(evidence: Evidence) -> Iterator[Check]:
    """Check that the CustomResourceDefinition is there."""
    if evidence.facts.installed:
        yield ok("mignodes.mig.dra.dev is served")
    else:
        chart = f"install or upgrade the chart ({page('install.md')})"
        yield fail("the cluster does not know mignodes.mig.dra.dev", chart)


def classes(evidence: Evidence) -> Iterator[Check]:
    """Check that every profile has a DeviceClass, made by the controller."""
    facts = evidence.facts
    generated = {
        c["metadata"]["name"] for c in evidence.facts.class_objects if is_generated(c, facts.driver)
    }
    profiles = offered_profiles(
        (frozenset(_profiles(node)) for node in facts.site.nodes), generated
    )
    wanted = {ANY_SLICE_CLASS, GPU_CLASS, *map(class_name, profiles)}
    existing = {c["metadata"]["name"]: c for c in evidence.facts.class_objects}
    taken: dict[str, list[str]] = {}
    for name in sorted((wanted & existing.keys()) - generated):
        taken.setdefault(how_to_make_way(existing[name]), []).append(name)
    missing = sorted(wanted - existing.keys())
    if missing:
        yield fail(
            f"DeviceClass {named(missing)} missing",
            "the controller makes them: see that it runs and leads",
        )
    for way, names in taken.items():
        yield warn(
            f"DeviceClass {named(names)} was made by somebody else: the controller leaves it alone",
            way,
        )
    if not missing and not taken:
        yield ok(f"{len(generated)} DeviceClasses for {counted(len(profiles), 'profile')}")


def _profiles(node: NodeView) -> Iterator[str]:
    for each in node.gpus:
        for profile in each.gpu.geometry.profiles if each.gpu.geometry else ():
            if profile.placements:
                yield profile.name


def rights(evidence: Evidence) -> Iterator[Check]:
    """Check what the caller may read."""
    if evidence.facts.unread:
        yield warn(f"you may not read {', '.join(evidence.facts.unread)}: checks are left out")
    else:
        yield ok("you may read everything")


def monitors(evidence: Evidence) -> Iterator[Check]:
    """Check that DCGM is on no node with slices.

    A slice that DCGM watches stays in use (NVIDIA/DCGM#276).
    """
    nodes = {node.name for node in evidence.facts.site.nodes}
    running = {
        str(pod.obj["spec"].get("nodeName", ""))
        for pod in evidence.facts.pods.values()
        if any(_DCGM in c.get("image", "") for c in pod.obj["spec"].get("containers") or ())
    }
    if found := sorted(nodes & running):
        yield warn(
            f"DCGM runs on node {named(found)}: a slice that it watches may not be removed, and "
            "its placement is unavailable then",
            f"where slices come and go keep it off: kubectl label node {found[0]} --overwrite "
            "nvidia.com/gpu.deploy.dcgm=false nvidia.com/gpu.deploy.dcgm-exporter=false where the "
            "GPU operator installs it, the node affinity of its chart otherwise; if it is to stay, "
            "watch mig_dra_unavailable_placements",
        )
    elif str(PODS) in evidence.facts.unread:
        yield unknown("pods may not be read")
    else:
        yield ok("DCGM is on no node with slices")
