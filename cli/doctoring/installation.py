"""Checks of what the cluster offers, of what was installed into it, and of other drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from api.crds import mignode_definition
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
from dra.common.resources import PODS, Obj, at
from dra.gpu.names import class_name

_OLDEST = (1, 34)
_CHART = f"install or upgrade the chart ({page('install.md')})"
_DCGM = "dcgm"


def kubernetes(evidence: Evidence) -> Iterator[Check]:
    """Check the server's version, and that it serves resource.k8s.io/v1."""
    version = evidence.version or "of unknown version"
    if evidence.served is None:
        yield unknown(f"Kubernetes {version}: its API groups may not be read")
    elif "v1" not in evidence.served:
        have = ", ".join(evidence.served) or "nothing"
        yield fail(
            f"Kubernetes {version} serves {have} of resource.k8s.io, not v1",
            "use Kubernetes 1.34 or newer, where this API is generally available",
        )
    elif (number := _number(evidence.version)) is not None and number < _OLDEST:
        yield warn(f"Kubernetes {version} is older than any that was tested (1.34)")
    else:
        yield ok(f"Kubernetes {version} serves resource.k8s.io/v1")


def definition(evidence: Evidence) -> Iterator[Check]:
    """Check that the CustomResourceDefinition is there, and as new as this program."""
    if not evidence.facts.installed:
        yield fail("the cluster does not know mignodes.mig.dra.dev", _CHART)
        return
    if evidence.definition is None:
        yield unknown("MigNodes are there; their definition may not be read")
        return
    versions = evidence.definition["spec"]["versions"]
    served = [v for v in versions if v["name"] == "v1alpha1" and v.get("served")]
    if not served:
        yield fail("mignodes.mig.dra.dev does not serve v1alpha1", _CHART)
        return
    schema = at(served[0], "schema", "openAPIV3Schema", default={})
    if lacking := sorted(set(_fields(_own_schema())) - set(_fields(schema))):
        yield fail(
            f"the definition of mignodes.mig.dra.dev is too old: it drops {named(lacking)}",
            f"upgrade the chart, which has the definition ({page('install.md')})",
        )
        return
    yield ok("mignodes.mig.dra.dev is served and has every field")


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


def limits(evidence: Evidence) -> Iterator[Check]:
    """Check that something turns limits into claims where namespaces opted in.

    Without that, pods in such namespaces wait for ever.
    """
    if not evidence.by_limits:
        return
    spaces = named(sorted(evidence.by_limits))
    if evidence.rewriters is None:
        yield unknown("admission policies may not be read")
    elif not evidence.rewriters:
        yield fail(
            f"namespace {spaces} opted in, and nothing makes claims of its pods' limits: the "
            "chart's admission policy is missing",
            f"{_CHART} with podLimits.enabled, on Kubernetes 1.36 or newer (1.35: with the gate "
            "MutatingAdmissionPolicy); pods that were made without it have to be made anew",
        )
    else:
        yield ok(f"limits become claims in namespace {spaces}")


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


def _own_schema() -> Obj:
    """The schema of MigNodes that this program knows."""
    (version,) = mignode_definition()["spec"]["versions"]
    found: Obj = version["schema"]["openAPIV3Schema"]
    return found


def _fields(schema: Obj, path: str = "") -> Iterator[str]:
    """Paths of all fields below a schema."""
    for name, inner in at(schema, "properties", default={}).items():
        yield f"{path}{name}"
        yield from _fields(inner, f"{path}{name}.")
    if items := schema.get("items"):
        yield from _fields(items, path)


def _number(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
