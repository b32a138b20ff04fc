"""Membership of a pod in a gang, in the words of whichever system made the pod.

The names are those of the systems' own sources: Kubernetes' ``PodSpec.schedulingGroup`` (1.36) and
``workloadRef`` (1.35), Kueue's plain pod groups, Volcano's and coscheduling's PodGroups, JobSet,
LeaderWorkerSet and Job. The first that applies counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dra.common.resources import Obj, at
from dra.gangs.podgroups import (
    COSCHEDULING,
    KOORDINATOR,
    KUBERNETES,
    VOLCANO,
    WORKLOADS,
    GroupKind,
)
from dra.gpu.names import prepare_retry

NAME_LABEL = "mig.dra.dev/pod-group"
"""Our own label: the name of the gang, in the pod's namespace."""

COUNT_LABEL = "mig.dra.dev/pod-group-min-count"
"""Our own label: the number of pods that are allocated together, at the least."""

_KUEUE_NAME = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_FAST = "kueue.x-k8s.io/pod-group-fast-admission"
"""Annotation of groups that are admitted with their first pod, as pods of a StatefulSet come."""

_VOLCANO_NAMES = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COSCHEDULING_NAME = "scheduling.x-k8s.io/pod-group"
_KOORDINATOR_NAME = "pod-group.scheduling.sigs.k8s.io"
_LIGHT_NAME = "pod-group.scheduling.sigs.k8s.io/name"
_LIGHT_COUNT = "pod-group.scheduling.sigs.k8s.io/min-available"

_OWNERS = {
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "leaderworkerset.sigs.k8s.io/group-key": "group of a LeaderWorkerSet",
    "batch.kubernetes.io/job-name": "Job",
}
"""Labels that tell whose pods belong together where our label says how many: they do not."""

_ANNOTATIONS = (_KUEUE_COUNT, _KUEUE_FAST, *_VOLCANO_NAMES)


def read_annotations(driver: str) -> tuple[str, ...]:
    """The annotations of pods that are read: where gangs say who they are, and what we noted."""
    return (prepare_retry(driver), *_ANNOTATIONS)


class GangKey(NamedTuple):
    """Identity of a gang: what makes it one, in words, its namespace and its name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class GroupRef(NamedTuple):
    """An object that says how many pods a gang has; ``part`` is the entry of a Workload."""

    kind: GroupKind
    namespace: str
    name: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """A pod's gang. Its size is ``stated`` by the pod's ``field``, or by the object ``group``.

    ``stated`` is None where that field is missing.
    """

    gang: GangKey
    field: str = ""
    stated: str | None = None
    group: GroupRef | None = None


def read_membership(obj: Obj) -> Membership | None:
    """The gang of the pod in ``obj``; None of a pod that is served by itself."""
    return next(_memberships(obj), None)


def _memberships(obj: Obj) -> Iterator[Membership]:
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    namespace = metadata["namespace"]
    labels: Mapping[str, str] = at(metadata, "labels", default={})
    annotations: Mapping[str, str] = at(metadata, "annotations", default={})
    yield from _of_kubernetes(spec, namespace)
    if NAME_LABEL in labels or COUNT_LABEL in labels:
        yield _own(labels, namespace, metadata["name"])
    if _KUEUE_NAME in labels and annotations.get(_KUEUE_FAST) != "true":
        gang = GangKey("Kueue pod group", namespace, labels[_KUEUE_NAME])
        yield Membership(gang, f"annotation {_KUEUE_COUNT}", annotations.get(_KUEUE_COUNT))
    for key in _VOLCANO_NAMES:
        if annotations.get(key):
            yield _of_object(VOLCANO, "Volcano PodGroup", namespace, annotations[key])
    if labels.get(_COSCHEDULING_NAME):
        yield _of_object(COSCHEDULING, "PodGroup", namespace, labels[_COSCHEDULING_NAME])
    if labels.get(_LIGHT_NAME):
        gang = GangKey("pod group", namespace, labels[_LIGHT_NAME])
        yield Membership(gang, f"label {_LIGHT_COUNT}", labels.get(_LIGHT_COUNT))
    if labels.get(_KOORDINATOR_NAME):
        yield _of_object(KOORDINATOR, "PodGroup", namespace, labels[_KOORDINATOR_NAME])


def _of_kubernetes(spec: Mapping[str, Any], namespace: str) -> Iterator[Membership]:
    if name := at(spec, "schedulingGroup", "podGroupName", default=""):
        yield _of_object(KUBERNETES, "PodGroup", namespace, name)
    reference = at(spec, "workloadRef", default={})
    if reference.get("name") and reference.get("podGroup"):
        part = str(reference["podGroup"])
        names = (reference["name"], part, reference.get("podGroupReplicaKey"))
        gang = GangKey("Workload", namespace, "/".join(n for n in names if n))
        group = GroupRef(WORKLOADS, namespace, reference["name"], part)
        yield Membership(gang, group=group)


def _own(labels: Mapping[str, str], namespace: str, pod: str) -> Membership:
    """The gang that our labels name, or that of the pod's owner where they only say how many."""
    field, stated = f"label {COUNT_LABEL}", labels.get(COUNT_LABEL)
    if labels.get(NAME_LABEL):
        return Membership(GangKey("pod group", namespace, labels[NAME_LABEL]), field, stated)
    for key, kind in _OWNERS.items():
        if labels.get(key):
            return Membership(GangKey(kind, namespace, labels[key]), field, stated)
    # Nobody else can be meant: it waits for pods that never come, and its reason says why.
    return Membership(GangKey(_NAMELESS, namespace, pod), field, stated)


_NAMELESS = "pod without a pod group,"


def is_nameless(gang: GangKey) -> bool:
    """True if a pod says how many belong together, and not which."""
    return gang.kind == _NAMELESS


def _of_object(kind: GroupKind, words: str, namespace: str, name: str) -> Membership:
    gang = GangKey(words, namespace, name)
    return Membership(gang, group=GroupRef(kind, namespace, name))
