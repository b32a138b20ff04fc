"""Rules for pods and for what makes pods: do the claims reach the containers?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cli.linting.claims import ClaimSpec
from cli.linting.documents import Document, Level, Path, Remark
from cli.linting.fields import entries, mapping, text
from dra.gpu.names import DEFAULT_DRIVER, finalizer

GATE = finalizer(DEFAULT_DRIVER)
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


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod's spec and where it stands."""

    document: Document
    at: Path
    spec: dict[str, Any]

    @property
    def whole(self) -> dict[str, Any]:
        """The pod, or the template of pods, that it is of: ``metadata`` and ``spec``."""
        holder: Any = self.document.obj
        for step in self.at[:-1]:
            holder = holder[step]
        return {"metadata": mapping(holder, "metadata"), "spec": self.spec}

    def references(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Kind and key of the claims and templates that it names."""
        namespace = self.document.key[0]
        for _, entry in entries(self.spec, "resourceClaims"):
            if name := text(entry, "resourceClaimName"):
                yield "ResourceClaim", (namespace, name)
            if name := text(entry, "resourceClaimTemplateName"):
                yield "ResourceClaimTemplate", (namespace, name)


def pod_spec(document: Document) -> PodSpec | None:
    """The pod in a document, if it has one."""
    at = _TEMPLATES.get(document.kind)
    if at is None:
        return None
    return PodSpec(document, at, mapping(document.obj, *(str(k) for k in at)))


def check_pod(
    pod: PodSpec, claims: Mapping[tuple[str, tuple[str, str]], ClaimSpec]
) -> Iterator[Remark]:
    """Findings about one pod; ``claims`` are those of all files, by kind and key."""
    document, at = pod.document, pod.at
    offered: dict[str, ClaimSpec | None] = {}
    for index, entry in entries(pod.spec, "resourceClaims"):
        path = (*at, "resourceClaims", index)
        one, other = (text(entry, f"resourceClaim{kind}") for kind in ("Name", "TemplateName"))
        if bool(one) == bool(other):
            yield document.remark(
                Level.ERROR,
                path,
                "exactly one of resourceClaimName and resourceClaimTemplateName has to be given",
            )
        kind = "ResourceClaim" if one else "ResourceClaimTemplate"
        offered[text(entry, "name")] = claims.get((kind, (document.key[0], one or other)))
        if one and _replicas(document) > 1:
            yield document.remark(
                Level.WARNING,
                path,
                f"all {_replicas(document)} replicas share this one claim, and so one node and one "
                "slice; a resourceClaimTemplateName gives each its own",
            )
    yield from _containers(pod, offered)
    yield from _placing(pod, offered)


def _containers(pod: PodSpec, offered: Mapping[str, ClaimSpec | None]) -> Iterator[Remark]:
    """Claims that containers name and that are not there, and the reverse."""
    document, used = pod.document, set()
    for kind in ("initContainers", "containers"):
        for index, container in entries(pod.spec, kind):
            path = (*pod.at, kind, index, "resources")
            for number, entry in entries(container, "resources", "claims"):
                name = text(entry, "name")
                used.add(name)
                where = (*path, "claims", number)
                if name not in offered:
                    have = ", ".join(offered) or "none"
                    message = f"spec.resourceClaims has no {name!r}; there are: {have}"
                    yield document.remark(Level.ERROR, where, message)
                yield from _request(document, where, entry, offered.get(name))
    for name in sorted(set(offered) - used):
        index = list(offered).index(name)
        yield document.remark(
            Level.WARNING,
            (*pod.at, "resourceClaims", index),
            f"no container uses claim {name!r}: it is allocated, and nobody sees the slice; name "
            "it in resources.claims of a container",
        )


def _request(
    document: Document, where: Path, entry: dict[str, Any], claim: ClaimSpec | None
) -> Iterator[Remark]:
    wanted = text(entry, "request")
    if wanted and claim is not None and wanted not in claim.requests:
        message = f"the claim has no request {wanted!r}; there are: {', '.join(claim.requests)}"
        yield document.remark(Level.ERROR, (*where, "request"), message)


def _placing(pod: PodSpec, offered: Mapping[str, object]) -> Iterator[Remark]:
    if not offered:
        return
    if text(pod.spec, "nodeName"):
        yield pod.document.remark(
            Level.ERROR,
            (*pod.at, "nodeName"),
            "a pod with claims must not name its node: the scheduler, which reserves claims for "
            "pods, is passed over; use nodeSelector",
        )
    gates = [text(g, "name") for _, g in entries(pod.spec, "schedulingGates")]
    if GATE not in gates:
        yield pod.document.remark(
            Level.HINT,
            pod.at,
            f"with scheduling gate {GATE} it would not be tried in vain while it waits for its "
            "slice; the controller lifts the gate",
        )


def _replicas(document: Document) -> int:
    value = mapping(document.obj, "spec").get("replicas", 1)
    return value if isinstance(value, int) and document.kind != "Pod" else 1
