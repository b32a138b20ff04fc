"""Rules for sharing: what a claim or the containers of a pod ask for and cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from api.errors import InvalidObjectError
from cli.linting.claims import ClaimSpec
from cli.linting.documents import Document, Level, Remark
from cli.linting.fields import entries, mapping, text
from cli.linting.pods import PodSpec
from dra.claims.containers import Use, crowded, find_crowd
from dra.claims.requests.sharing import RequestedSharing
from dra.gpu.names import DEFAULT_DRIVER

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
    """Containers that use a device shared by MPS beside others."""
    offered: dict[str, ClaimSpec] = {}
    for _, entry in entries(pod.spec, "resourceClaims"):
        for kind, field in _REFERENCES.items():
            found = claims.get((kind, (pod.document.key[0], text(entry, field))))
            if found is not None:
                offered[text(entry, "name")] = found
    by_mps = {n: _sharing(c, classes).by_mps(c.understood) for n, c in offered.items()}
    for field in ("initContainers", "containers"):
        for index, container in entries(pod.spec, field):
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
