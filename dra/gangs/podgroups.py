"""Kinds of objects that say how many pods belong together, and how each of them says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, Resource, at


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind, in any of the ``versions`` that can be read, the best first.

    ``path`` is the field that has the number of pods.
    """

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    path: str = "spec.minMember"

    def at_version(self, version: str) -> Resource:
        """The resource to list and watch."""
        return Resource(self.group, version, self.plural, self.kind, namespaced=True)


KUBERNETES = GroupKind(
    "scheduling.k8s.io",
    "podgroups",
    "PodGroup",
    ("v1beta1", "v1alpha2"),
    "spec.schedulingPolicy.gang.minCount",
)
WORKLOADS = GroupKind(
    "scheduling.k8s.io",
    "workloads",
    "Workload",
    ("v1alpha1",),
    "spec.podGroups[].policy.gang.minCount",
)
VOLCANO = GroupKind("scheduling.volcano.sh", "podgroups", "PodGroup", ("v1beta1",))
COSCHEDULING = GroupKind("scheduling.x-k8s.io", "podgroups", "PodGroup", ("v1alpha1",))
KOORDINATOR = GroupKind("scheduling.sigs.k8s.io", "podgroups", "PodGroup", ("v1alpha1",))
KINDS = (KUBERNETES, WORKLOADS, VOLCANO, COSCHEDULING, KOORDINATOR)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """An object's numbers of pods, by the entry of a Workload and by "" for all other kinds.

    One is said of pods that are served one by one.
    """

    kind: GroupKind
    namespace: str
    name: str
    counts: Mapping[str, int]


def kind_of(resource: Resource) -> GroupKind | None:
    """The kind that ``resource`` is a version of; None of any other resource."""
    found = (k for k in KINDS if (k.group, k.plural) == (resource.group, resource.plural))
    return next(found, None)


def read_pod_group(kind: GroupKind, obj: Obj) -> PodGroup:
    """The numbers of pods in ``obj``; what is no number from 1 counts as 1."""
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    if kind is KUBERNETES:
        counts = {"": _gang(at(spec, "schedulingPolicy", default={}))}
    elif kind is WORKLOADS:
        groups = at(spec, "podGroups")
        counts = {g["name"]: _gang(at(g, "policy", default={})) for g in groups}
    else:
        counts = {"": _number(spec.get("minMember"))}
    return PodGroup(kind, metadata["namespace"], metadata["name"], counts)


def trim_pod_group(kind: GroupKind, obj: Obj) -> Obj:
    """The part of ``obj`` that is read."""
    fields = ("name", "namespace", "uid", "resourceVersion")
    metadata = {k: v for k, v in obj["metadata"].items() if k in fields}
    said = at(obj, "spec", default={})
    kept = {
        KUBERNETES: ("schedulingPolicy",),
        WORKLOADS: ("podGroups",),
    }.get(kind, ("minMember",))
    return {"metadata": metadata, "spec": {k: said[k] for k in kept if k in said}}


def _gang(policy: Mapping[str, Any]) -> int:
    return _number(at(policy, "gang", "minCount", default=None))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 1 else 1
