"""Membership of a pod in a gang, and the number of its pods that are allocated together.

The names are those of the systems' own sources: Kubernetes' ``PodSpec.schedulingGroup`` (1.36) and
``workloadRef`` (1.35), Kueue's plain pod groups, Volcano's and coscheduling's PodGroups, JobSet,
LeaderWorkerSet and Job. The first that applies counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from dra.common.parts import shape
from dra.common.resources import Obj, Resource, at
from dra.gpu.names import prepare_retry


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind of object that says how many pods a gang has.

    ``versions``: the API versions that can be read, the best first. ``path``: the field that has
    the number of pods.
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
    """The numbers of pods that an object says its gangs need.

    ``counts``: by entry of a Workload, under "" for other kinds. 1 means that the pods are served
    one by one.
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
    """The numbers of pods in ``obj``; a value that is not a number from 1 on counts as 1."""
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    if kind is KUBERNETES:
        counts = {"": _gang(at(spec, "schedulingPolicy", default={}))}
    elif kind is WORKLOADS:
        groups = at(spec, "podGroups")
        counts = {g["name"]: _gang(at(g, "policy", default={})) for g in groups}
    else:
        counts = {"": _number(spec.get("minMember"))}
    return PodGroup(kind, metadata["namespace"], metadata["name"], counts)


_GROUP_BYTES = 8 * 2**10
"""Far more than the eight entries of a Workload take."""

_POLICY = {"gang": {"minCount": Any}}
_GROUP = msgspec.json.Decoder(
    shape(
        {
            "metadata": {"name": str, "namespace": str, "uid": str, "resourceVersion": str},
            "spec": {
                "schedulingPolicy": _POLICY,
                "podGroups": [{"name": str, "policy": _POLICY}],
                "minMember": Any,
            },
        }
    )
)


def keep_pod_group(raw: msgspec.Raw) -> Obj:
    """The part of a pod group of any kind that is read; no spec where that is too large."""
    group: Obj = _GROUP.decode(raw)
    if len(msgspec.json.encode(group.get("spec"))) > _GROUP_BYTES:
        del group["spec"]
    return group


def _gang(policy: Mapping[str, Any]) -> int:
    return _number(at(policy, "gang", "minCount", default=None))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value > 1 else 1


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
"""By label that names a pod's owner, the kind of owner.

The pods of one owner are a gang where our label says how many and nothing says which.
"""

_ANNOTATIONS = (_KUEUE_COUNT, _KUEUE_FAST, *_VOLCANO_NAMES)


def read_annotations(driver: str) -> tuple[str, ...]:
    """The annotations of pods that are read: those of gangs, and ``prepare_retry``."""
    return (prepare_retry(driver), *_ANNOTATIONS)


class GangKey(NamedTuple):
    """Identity of a gang; ``kind``: what makes it one, in words."""

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
    """The gang by this driver's own labels.

    With a number of pods and no name, the gang is the pods of the same JobSet, LeaderWorkerSet
    group or Job. A pod of none of these has a gang of its own, which no other pod can join.
    """
    field, stated = f"label {COUNT_LABEL}", labels.get(COUNT_LABEL)
    if labels.get(NAME_LABEL):
        return Membership(GangKey("pod group", namespace, labels[NAME_LABEL]), field, stated)
    for key, kind in _OWNERS.items():
        if labels.get(key):
            return Membership(GangKey(kind, namespace, labels[key]), field, stated)
    # No other pod can belong to it: the pod waits, and its reason says why.
    return Membership(GangKey(_NAMELESS, namespace, pod), field, stated)


_NAMELESS = "pod without a pod group,"


def is_nameless(gang: GangKey) -> bool:
    """True if a pod says how many belong together, and not which."""
    return gang.kind == _NAMELESS


def _of_object(kind: GroupKind, words: str, namespace: str, name: str) -> Membership:
    gang = GangKey(words, namespace, name)
    return Membership(gang, group=GroupRef(kind, namespace, name))


MOST_PODS = 400
"""Upper bound on the pods that are allocated together: more take too long to be decided."""

_DIGITS = 6
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Unclear:
    """Fault in the statements of a gang's size, with its remedy."""

    message: str


class PodGroups:
    """Objects that say how large gangs are. ``kinds``: those of which all objects are known."""

    def __init__(self) -> None:
        self.kinds: set[GroupKind] = set()
        self._known: dict[tuple[GroupKind, str, str], PodGroup] = {}

    def set(self, group: PodGroup) -> bool:
        """Take an object; False when that is known."""
        key = (group.kind, group.namespace, group.name)
        if self._known.get(key) == group:
            return False
        self._known[key] = group
        return True

    def remove(self, kind: GroupKind, namespace: str, name: str) -> None:
        """Forget an object that is gone."""
        self._known.pop((kind, namespace, name), None)

    def find(self, ref: GroupRef) -> int | Unclear:
        """The number that ``ref`` says; 1 where nothing is known of its kind."""
        if ref.kind not in self.kinds:
            return 1
        group = self._known.get((ref.kind, ref.namespace, ref.name))
        what = f"{ref.kind.kind} {ref.namespace}/{ref.name} of {ref.kind.group}"
        if group is None:
            return Unclear(f"{what} does not exist: create it, with {ref.kind.path}")
        if ref.part in group.counts:
            return group.counts[ref.part]
        entries = ", ".join(sorted(group.counts)) or "none"
        return Unclear(f"{what} has no pod group {ref.part!r}; it has {entries}")


def find_minimum(
    membership: Membership, stated: Collection[str | None], groups: PodGroups
) -> int | Unclear:
    """The number of pods of a gang that are allocated together; 1 where each is by itself.

    ``stated``: the size that its pods state, None for a pod that states none.
    """
    gang = membership.gang
    if membership.group is not None:
        found = groups.find(membership.group)
        return found if isinstance(found, Unclear) else _bounded(gang, found)
    if is_nameless(gang):
        return Unclear(
            f"{membership.field} says how many pods belong together, and nothing says which: add "
            f"label {NAME_LABEL} with one value on all of them"
        )
    said = {*stated}
    if None in said:
        return Unclear(
            f"a pod of {gang} has no {membership.field}: set it on each of its pods to the number "
            "that is to be allocated together"
        )
    texts = sorted(text for text in said if text is not None)
    if len(texts) != 1:
        return Unclear(
            f"pods of {gang} differ in {membership.field} ({_listed(texts)}): set the same number "
            "on all of them"
        )
    number = int(texts[0]) if _is_number(texts[0]) else 0
    if number < 1:
        return Unclear(
            f"{membership.field} of {gang} is {texts[0][:20]!r}: set a whole number from 1 to "
            f"{MOST_PODS}"
        )
    return _bounded(gang, number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _bounded(gang: GangKey, number: int) -> int | Unclear:
    if number <= MOST_PODS:
        return number
    return Unclear(
        f"{gang} needs {number} pods at once, and at most {MOST_PODS} are allocated together: "
        "divide it"
    )


def _listed(texts: list[str]) -> str:
    shown = ", ".join(repr(text[:20]) for text in texts[:_NAMED])
    more = len(texts) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown
