"""Rules for pods and workloads: do their claims reach their containers?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import getitem
from typing import Any

from cli.linting.claims import ClaimSpec, Key, Manifests
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from cli.linting.shapes import POD, shaped
from dra.claims.claims import Use, crowded, find_crowd, lacks_request, nobody_uses
from dra.limits.asks import GPUS, MEMORY, is_profile, is_zero
from dra.limits.others import Translation, renamed, translate
from dra.limits.rewriting import is_template_name, opt_in_label

_KUBERNETES = ("v1", "apps/v1", "batch/v1")
"""Versions whose objects the API server takes only if their pods have the right shape."""
_COPIES = ("replicas", "parallelism", "size")
"""Fields by which an object, or a part of it, has several pods of one template."""
CLAIM_FIELDS = {
    "resourceClaimName": "ResourceClaim",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
}


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod's spec and where it stands."""

    document: Document
    at: Path
    spec: dict[str, Any]

    @property
    def _around(self) -> list[Any]:
        """The values around the spec, from the object to the spec itself."""
        return [*accumulate(self.at, getitem, initial=self.document.obj)]  # type: ignore[arg-type]

    @property
    def whole(self) -> dict[str, dict[str, Any]]:
        """``metadata`` and ``spec`` of the pod, or template of pods, that has this spec."""
        has_metadata = self.at[-1:] == ("spec",)
        return {
            "metadata": mapping(self._around[-2], "metadata") if has_metadata else {},
            "spec": self.spec,
        }

    @property
    def copies(self) -> int:
        """Number of the pods that are made of this spec, as far as its object says."""
        numbers = (mapping(each).get(field) for each in self._around for field in _COPIES)
        return math.prod(n for n in numbers if type(n) is int)

    def place(self, path: Path) -> Path:
        """Path in the document of the field at a path of :attr:`whole`."""
        return (*self.at, *path[1:]) if path[0] == "spec" else (*self.at[:-1], *path)

    def put(self, pod: dict[str, Any]) -> None:
        """Put what a pod's ``metadata`` and ``spec`` contain in the place of what these do."""
        for field, part in self.whole.items():
            part.clear()
            part.update(pod[field])

    @property
    def entries(self) -> dict[str, tuple[Path, list[Key]]]:
        """Entries of ``resourceClaims`` by name: each with its path and what it refers to.

        An entry that is right refers to one claim or template.
        """
        found = {}
        for index, entry in entries(self.spec, "resourceClaims"):
            names = ((kind, text(entry, field)) for field, kind in CLAIM_FIELDS.items())
            refers = [(kind, (self.document.key[0], name)) for kind, name in names if name]
            found[text(entry, "name")] = ((*self.at, "resourceClaims", index), refers)
        return found

    def claims(self, known: Manifests) -> dict[str, ClaimSpec]:
        """The claims of its entries that are in the files."""
        named = {name: refers[0] for name, (_, refers) in self.entries.items() if refers}
        return {name: known.claims[key] for name, key in named.items() if key in known.claims}

    @property
    def containers(self) -> Iterator[tuple[Path, str, list[Use]]]:
        """Its containers in the order in which they start: path and content of ``claims``, name."""
        for kind in ("initContainers", "containers"):
            for index, container in entries(self.spec, kind):
                used = [
                    Use(text(entry, "name"), text(entry, "request"))
                    for _, entry in entries(container, "resources", "claims")
                ]
                path = (*self.at, kind, index, "resources", "claims")
                yield path, text(container, "name"), used


def pods_of(document: Document) -> Iterator[PodSpec | Remark]:
    """The pods in a document by their shape, and remarks about what cannot be judged.

    Whatever has ``containers`` is the spec of a pod: custom resources have them in places of their
    own.
    """
    done: list[Path] = [("status",)]
    aside: list[Path] = []
    for path, value in document.mappings:
        if any(path[: len(each)] == each for each in done):
            continue
        if _has_containers(value):
            done.append(path)
            pod = PodSpec(document, path, value)
            read = shaped(document, path[:-1], pod.whole, POD)
            if not isinstance(read, Remark) or text(document.obj, "apiVersion") in _KUBERNETES:
                yield read if isinstance(read, Remark) else pod
                continue
        elif not _asks(path, value):
            continue
        aside.append(path)
    if aside:
        yield document.remark(Level.WARNING, aside[0], NOT_LOOKED_AT)


NOT_LOOKED_AT = (
    "how pods come of this is not known here, and it was not looked at: lint those pods "
    "(kubectl get pods -o yaml | kubectl mig lint -)"
)


def _has_containers(value: dict[str, Any]) -> bool:
    found = value.get("containers")
    return isinstance(found, list) and any(isinstance(each, dict) for each in found)


def _asks(path: Path, value: dict[str, Any]) -> bool:
    """True if a mapping outside of pods has limits for slices or GPUs, or names claims."""
    if any(text(value, field) for field in CLAIM_FIELDS):
        return True
    is_of_pods = str(path[-1:]).startswith("('resources")  # TrainJob: resourcesPerNode
    limits = mapping(value, "limits") if is_of_pods else {}
    asked = [name for name, amount in limits.items() if not is_zero(amount)]
    return any(n == GPUS or n.startswith(MEMORY) or is_profile(n) or renamed(n) for n in asked)


def check_pod(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a pod that neither the API server nor the controller tells at once."""
    for rule in (_references, _uses, _sharing, _limits):
        yield from rule(pod, known)


def _references(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a node that is named, shared claims, and templates that are not there."""
    has_run = mapping(pod.document.obj, "metadata").get("uid")
    if pod.entries and text(pod.spec, "nodeName") and not has_run:
        message = (
            "a pod with claims must not name its node: the scheduler, which reserves claims for "
            "pods, is passed over; use nodeSelector"
        )
        yield pod.document.remark(Level.ERROR, (*pod.at, "nodeName"), message)
    for at, refers in pod.entries.values():
        if len(refers) != 1:
            message = f"an entry has one of {' and '.join(CLAIM_FIELDS)}, and nothing below source"
            yield pod.document.remark(Level.ERROR, at, message)
        for kind, (namespace, name) in refers:
            if kind == "ResourceClaim" and pod.copies > 1:
                message = (
                    f"all {pod.copies} replicas share this one claim, and so one node and one "
                    "slice; a resourceClaimTemplateName gives each its own"
                )
                yield pod.document.remark(Level.WARNING, at, message)
            there = sorted(n for k, (where, n) in known.claims if (k, where) == (kind, namespace))
            if there and name not in there and not is_template_name(name):
                have = ", ".join(there)
                message = f"there is no {kind} {name!r} in these files; there are: {have}"
                yield pod.document.remark(Level.WARNING, at, message)


def _uses(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about requests that containers name and claims lack, and about unused claims."""
    offered = pod.entries
    has = {n: [r.name for r in c.claim.requests] for n, c in pod.claims(known).items()}
    have = ", ".join(offered) or "none"
    for at, _, uses in pod.containers:
        for number, (name, wanted) in enumerate(uses):
            where = (*at, number)
            if name not in offered:
                message = f"the pod has no claim {name!r} in its resourceClaims; there are: {have}"
                yield pod.document.remark(Level.ERROR, (*where, "name"), message)
            if wanted and name in has and wanted not in has[name]:
                message = lacks_request(wanted, has[name])
                yield pod.document.remark(Level.ERROR, (*where, "request"), message)
    used = {use.claim for _, _, uses in pod.containers for use in uses}
    for name in sorted(offered.keys() - used):
        yield pod.document.remark(Level.WARNING, offered[name][0], nobody_uses(name))


def _sharing(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about containers that use an MPS device beside others."""
    by_mps = {name: known.by_mps(claim) for name, claim in pod.claims(known).items()}
    for at, container, uses in pod.containers:
        if crowd := find_crowd(uses, by_mps):
            yield pod.document.remark(Level.ERROR, at, crowded(container, crowd))


def _limits(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about limits of other systems, and about the claims that they become."""
    translation = translate(pod.whole)
    yield from remarks_of(pod, translation)
    if not translation.slices or translation.refused:
        return
    asked = ", ".join(f"{count} of {name}" for name, count in translation.slices.items())
    if translation.renamed:
        names = ", ".join(translation.renamed)
        message = (
            f"nothing here serves limits of {names}: kubectl mig convert prints it with claims"
        )
    else:
        message = (
            "its limits are those of another system: they become claims in namespaces with label "
            f"{opt_in_label(known.driver)}=claims, and are extended resources elsewhere, which "
            "only nodes serve that kube-scheduler allocates; kubectl mig convert prints it with "
            "claims"
        )
    yield pod.document.remark(Level.WARNING, pod.at, f"{message} ({asked})")


def remarks_of(pod: PodSpec, translation: Translation) -> Iterator[Remark]:
    """The findings of a translation of limits, as remarks."""
    for finding in translation.findings:
        level = Level.ERROR if finding.refused else Level.WARNING
        yield pod.document.remark(level, pod.place(finding.path), finding.message)
