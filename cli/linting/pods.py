"""Rules for pods and workloads: do their claims reach their containers?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cli.linting.claims import ClaimSpec, Key, Manifests
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from dra.claims.claims import Use, crowded, find_crowd
from dra.gpu.names import DEFAULT_DRIVER, finalizer
from dra.gpu.shares import HAMI_CORE, ONE_CONTAINER
from dra.limits.others import Translation, translate

_GATE = finalizer(DEFAULT_DRIVER)
_TEMPLATES: Mapping[str, Path] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
_KINDS = {
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
}


class _Entry(NamedTuple):
    """An entry of a pod's ``resourceClaims``: its path, its name, the claims that it refers to."""

    at: Path
    name: str
    refers: list[Key]


class _Using(NamedTuple):
    """A container: the path of its ``resources.claims``, its name, and the entries there."""

    at: Path
    name: str
    claims: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod's spec and where it stands."""

    document: Document
    at: Path
    spec: dict[str, Any]

    @property
    def whole(self) -> dict[str, Any]:
        """``metadata`` and ``spec`` of the pod, or template of pods, that has this spec."""
        holder: Any = self.document.obj
        for step in self.at[:-1]:
            holder = holder[step]
        return {"metadata": mapping(holder, "metadata"), "spec": self.spec}

    @property
    def entries(self) -> list[_Entry]:
        """Entries of ``resourceClaims``; an entry that is right refers to one claim."""
        namespace = self.document.key[0]
        return [
            _Entry(
                (*self.at, "resourceClaims", index),
                text(entry, "name"),
                [(k, (namespace, n)) for f, k in _KINDS.items() if (n := text(entry, f))],
            )
            for index, entry in entries(self.spec, "resourceClaims")
        ]

    def claims(self, known: Manifests) -> dict[str, ClaimSpec]:
        """The claims of its entries that are in the files."""
        found = {e.name: known.claims.get(e.refers[0]) for e in self.entries if e.refers}
        return {name: spec for name, spec in found.items() if spec is not None}

    @property
    def containers(self) -> Iterator[_Using]:
        """Its containers, in the order in which they start."""
        for kind in ("initContainers", "containers"):
            for index, container in entries(self.spec, kind):
                path = (*self.at, kind, index, "resources", "claims")
                used = [entry for _, entry in entries(container, "resources", "claims")]
                yield _Using(path, text(container, "name"), used)


def pod_spec(document: Document) -> PodSpec | None:
    """The pod in a document, if it has one."""
    at = _TEMPLATES.get(document.kind)
    if at is None:
        return None
    return PodSpec(document, at, mapping(document.obj, *(str(k) for k in at)))


def check_pod(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a pod that neither the API server nor the controller tells at once."""
    for rule in (_references, _uses, _placing, _sharing, _limits):
        yield from rule(pod, known)


def _references(pod: PodSpec, _: Manifests) -> Iterator[Remark]:
    """Finding about a claim that all replicas of a workload would share."""
    replicas = mapping(pod.document.obj, "spec").get("replicas", 1)
    for entry in pod.entries:
        one = any(kind == "ResourceClaim" for kind, _ in entry.refers)
        if one and isinstance(replicas, int) and replicas > 1 and pod.document.kind != "Pod":
            yield pod.document.remark(
                Level.WARNING,
                entry.at,
                f"all {replicas} replicas share this one claim, and so one node and one "
                "slice; a resourceClaimTemplateName gives each its own",
            )


def _uses(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about requests that containers name and claims lack, and about unused claims."""
    offered = {entry.name: entry for entry in pod.entries}
    claims, used = pod.claims(known), set()
    for container in pod.containers:
        for number, entry in enumerate(container.claims):
            name, wanted = text(entry, "name"), text(entry, "request")
            used.add(name)
            where = (*container.at, number)
            if wanted and name in claims and wanted not in claims[name].requests:
                have = ", ".join(claims[name].requests)
                message = f"the claim has no request {wanted!r}; there are: {have}"
                yield pod.document.remark(Level.ERROR, (*where, "request"), message)
    for name in sorted(offered.keys() - used):
        yield pod.document.remark(
            Level.WARNING,
            offered[name].at,
            f"no container uses claim {name!r}: it is allocated, and nobody sees the slice; name "
            "it in resources.claims of a container",
        )


def _placing(pod: PodSpec, _: Manifests) -> Iterator[Remark]:
    if not pod.entries:
        return
    if text(pod.spec, "nodeName"):
        yield pod.document.remark(
            Level.ERROR,
            (*pod.at, "nodeName"),
            "a pod with claims must not name its node: the scheduler, which reserves claims for "
            "pods, is passed over; use nodeSelector",
        )
    gates = [text(g, "name") for _, g in entries(pod.spec, "schedulingGates")]
    if _GATE not in gates:
        yield pod.document.remark(
            Level.HINT,
            pod.at,
            f"with scheduling gate {_GATE} it would not be tried in vain while it waits for its "
            "slice; the controller lifts the gate",
        )


def _sharing(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about containers that use an MPS device beside others, or share a HAMi-core claim.

    A selector tells that HAMi-core is to enforce a claim's limits; otherwise the node decides.
    """
    claims = pod.claims(known)
    by_mps = {name: known.sharing(c).by_mps(c.understood) for name, c in claims.items()}
    limited = {name for name, claim in claims.items() if HAMI_CORE in str(claim.devices)}
    before: set[str] = set()
    for container in pod.containers:
        uses = [Use(text(c, "name"), text(c, "request")) for c in container.claims]
        used = {text(c, "name") for c in container.claims}
        if limited & used & before:
            yield pod.document.remark(Level.ERROR, container.at, ONE_CONTAINER)
        before |= used
        if crowd := find_crowd(uses, by_mps):
            message = crowded(container.name, crowd)
            yield pod.document.remark(Level.ERROR, container.at, message)


def _limits(pod: PodSpec, _: Manifests) -> Iterator[Remark]:
    """Findings about limits of other systems, and about the claims that they become."""
    translation = translate(pod.whole)
    yield from remarks_of(pod, translation)
    if translation.slices and not translation.refused:
        asked = ", ".join(f"{count} of {name}" for name, count in translation.slices.items())
        yield pod.document.remark(
            Level.WARNING,
            pod.at,
            f"its limits are those of another system: they become claims ({asked}) in namespaces "
            "with label mig.dra.dev/limits=claims, and are extended resources elsewhere, which "
            "only nodes serve that kube-scheduler allocates; kubectl mig convert prints it with "
            "claims",
        )


def remarks_of(pod: PodSpec, translation: Translation) -> Iterator[Remark]:
    """The findings of a translation of limits, as remarks."""
    for finding in translation.findings:
        level = Level.ERROR if finding.refused else Level.WARNING
        yield pod.document.remark(level, (*pod.at[:-1], *finding.path), finding.message)
