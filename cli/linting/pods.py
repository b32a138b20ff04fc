"""Rules for pods and workloads: do their claims reach their containers?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from operator import getitem
from typing import Any, NamedTuple

from cli.linting.claims import ClaimSpec, Key, Manifests
from cli.linting.documents import Document, Level, Path, Remark, entries, mapping, text
from cli.linting.shapes import POD, misshapen
from dra.claims.claims import Use, crowded, find_crowd, lacks_request, nobody_uses
from dra.claims.wants import ClaimWants
from dra.gpu.names import finalizer
from dra.gpu.shares import HAMI_CORE, ONE_CONTAINER
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
        return {"metadata": mapping(self._holder, "metadata"), "spec": self.spec}

    @property
    def _around(self) -> list[Any]:
        """The values around the spec, from the object to the spec itself."""
        return [*accumulate(self.at, getitem, initial=self.document.obj)]  # type: ignore[arg-type]

    @property
    def _holder(self) -> dict[str, Any]:
        """The object with the spec in its field ``spec``; empty where that is another field."""
        return self._around[-2] if self.at[-1:] == ("spec",) else {}

    @property
    def copies(self) -> int:
        """Number of the pods that are made of this spec, as far as its object says."""
        numbers = (mapping(each).get(field) for each in self._around for field in _COPIES)
        return math.prod(n for n in numbers if type(n) is int)

    def place(self, path: Path) -> Path:
        """Path in the document of the field at a path of :attr:`whole`."""
        return (*self.at, *path[1:]) if path[0] == "spec" else (*self.at[:-1], *path)

    def put(self, pod: dict[str, Any]) -> None:
        """Put ``metadata`` and ``spec`` of a pod in the place of these."""
        if holder := self._holder:
            holder.update({key: value for key, value in pod.items() if value or key in holder})
        else:
            self.spec.update(pod["spec"])

    @property
    def entries(self) -> list[_Entry]:
        """Entries of ``resourceClaims``; an entry that is right refers to one claim."""
        namespace = self.document.key[0]
        return [
            _Entry(
                (*self.at, "resourceClaims", index),
                text(entry, "name"),
                [(k, (namespace, n)) for f, k in CLAIM_FIELDS.items() if (n := text(entry, f))],
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
            remark = misshapen(document, path[:-1], pod.whole, POD)
            if remark is None or text(document.obj, "apiVersion") in _KUBERNETES:
                yield remark or pod
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
    return any(_is_ask(name) and not is_zero(limits[name]) for name in limits)


def _is_ask(name: str) -> bool:
    return name == GPUS or name.startswith(MEMORY) or is_profile(name) or renamed(name) is not None


def check_pod(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a pod that neither the API server nor the controller tells at once."""
    for rule in (_references, _uses, _placing, _sharing, _limits):
        yield from rule(pod, known)


def _references(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about a claim that all replicas would share, and a template that is not there."""
    for entry in pod.entries:
        if len(entry.refers) != 1:
            message = f"an entry has one of {' and '.join(CLAIM_FIELDS)}, and nothing below source"
            yield pod.document.remark(Level.ERROR, entry.at, message)
        one = any(kind == "ResourceClaim" for kind, _ in entry.refers)
        if one and pod.copies > 1:
            yield pod.document.remark(
                Level.WARNING,
                entry.at,
                f"all {pod.copies} replicas share this one claim, and so one node and one "
                "slice; a resourceClaimTemplateName gives each its own",
            )
        for kind, (namespace, name) in entry.refers:
            if (kind, (namespace, name)) in known.claims or is_template_name(name):
                continue
            there = sorted(n for k, (where, n) in known.claims if (k, where) == (kind, namespace))
            message = f"there is no {kind} {name!r} in these files"
            if there:
                message += f"; there are: {', '.join(there)}"
            yield pod.document.remark(Level.WARNING if there else Level.HINT, entry.at, message)


def _uses(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    """Findings about requests that containers name and claims lack, and about unused claims."""
    offered = {entry.name: entry for entry in pod.entries}
    claims, used = pod.claims(known), set()
    for container in pod.containers:
        for number, entry in enumerate(container.claims):
            name, wanted = text(entry, "name"), text(entry, "request")
            used.add(name)
            where = (*container.at, number)
            if name not in offered:
                have = ", ".join(offered) or "none"
                message = f"the pod has no claim {name!r} in its resourceClaims; there are: {have}"
                yield pod.document.remark(Level.ERROR, (*where, "name"), message)
            if wanted and name in claims and wanted not in claims[name].requests:
                message = lacks_request(wanted, claims[name].requests)
                yield pod.document.remark(Level.ERROR, (*where, "request"), message)
    for name in sorted(offered.keys() - used):
        yield pod.document.remark(Level.WARNING, offered[name].at, nobody_uses(name))


def _placing(pod: PodSpec, known: Manifests) -> Iterator[Remark]:
    if not pod.entries:
        return
    if text(pod.spec, "nodeName") and not mapping(pod.document.obj, "metadata").get("uid"):
        yield pod.document.remark(
            Level.ERROR,
            (*pod.at, "nodeName"),
            "a pod with claims must not name its node: the scheduler, which reserves claims for "
            "pods, is passed over; use nodeSelector",
        )
    gates = [text(g, "name") for _, g in entries(pod.spec, "schedulingGates")]
    gate, claims = finalizer(known.driver), pod.claims(known).values()
    # The controller lifts the gate of pods whose claims are all its own.
    ours = [isinstance(known.read(claim), ClaimWants) for claim in claims]
    if ours and all(ours) and gate not in gates:
        yield pod.document.remark(
            Level.HINT,
            pod.at,
            f"with scheduling gate {gate} it would not be tried in vain while it waits for its "
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
