"""Rules for sharing: what a claim or the containers of a pod ask for and cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from api.errors import InvalidObjectError
from cli.linting.claims import ClaimSpec
from cli.linting.documents import Document, Level, Remark
from cli.linting.fields import entries, mapping, text
from cli.linting.pods import PodSpec
from dra.claims.claims import Use, crowded, find_crowd
from dra.claims.requests import RequestedSharing
from dra.gpu.names import DEFAULT_DRIVER
from dra.gpu.shares import HAMI_CORE, ONE_CONTAINER

_Claims = Mapping[tuple[str, tuple[str, str]], ClaimSpec]


def check_sharing(spec: ClaimSpec, classes: Mapping[str, Document]) -> Iterator[Remark]:
    """The sharing of one claim, as far as these files tell."""
    try:
        problem = _sharing(spec, classes).problem(spec.understood)
    except InvalidObjectError:  # told of the configuration itself
        return
    if problem:
        yield spec.document.remark(Level.ERROR, (*spec.at, "config"), problem)


def check_containers(
    pod: PodSpec, claims: _Claims, classes: Mapping[str, Document]
) -> Iterator[Remark]:
    """Containers that use a device shared by MPS beside others, or one claim of HAMi-core's.

    That HAMi-core is to hold a claim to its limits a selector says; else it is the node's doing.
    """
    offered: dict[str, ClaimSpec] = {}
    for _, entry in entries(pod.spec, "resourceClaims"):
        for kind, field in _REFERENCES.items():
            found = claims.get((kind, (pod.document.key[0], text(entry, field))))
            if found is not None:
                offered[text(entry, "name")] = found
    by_mps = {n: _sharing(c, classes).by_mps(c.understood) for n, c in offered.items()}
    limited = {name for name, claim in offered.items() if HAMI_CORE in str(claim.devices)}
    before: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in entries(pod.spec, field):
            used = {text(c, "name") for _, c in entries(container, "resources", "claims")}
            if limited & used & before:
                where = (*pod.at, field, index, "resources", "claims")
                yield pod.document.remark(Level.ERROR, where, ONE_CONTAINER)
            before |= used
            named = entries(container, "resources", "claims")
            crowd = find_crowd((Use(text(c, "name"), text(c, "request")) for _, c in named), by_mps)
            if crowd:
                where = (*pod.at, field, index, "resources", "claims")
                problem = crowded(text(container, "name"), crowd)
                yield pod.document.remark(Level.ERROR, where, problem)


_REFERENCES = {
    "ResourceClaim": "resourceClaimName",
    "ResourceClaimTemplate": "resourceClaimTemplateName",
}


def _sharing(spec: ClaimSpec, classes: Mapping[str, Document]) -> RequestedSharing:
    def of_class(name: str) -> Sequence[Mapping[str, Any]]:
        found = classes.get(name)
        return _config(mapping(found.obj, "spec")) if found is not None else ()

    return RequestedSharing(_config(spec.devices), of_class, DEFAULT_DRIVER)


def _config(holder: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [entry for _, entry in entries(holder, "config") if mapping(entry, "opaque")]
