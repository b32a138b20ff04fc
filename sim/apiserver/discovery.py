"""Groups, versions and resources that are served, and as much OpenAPI as kubectl apply asks for.

Each group version is a list of its own: clients that would rather have all in one answer take it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from dra.common.resources import Obj

if TYPE_CHECKING:
    from sim.apiserver.resources import Catalogue, ResourceType


_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"} | (
    dict.fromkeys(("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion"), "")
)
_CALLS = {
    "binding": {"kind": "Binding", "verbs": ["create"]},
    "eviction": {"group": "policy", "version": "v1", "kind": "Eviction", "verbs": ["create"]},
    "log": {"kind": "Pod", "verbs": ["get"]},
    "scale": {
        "group": "autoscaling",
        "version": "v1",
        "kind": "Scale",
        "verbs": ["get", "patch", "update"],
    },
}
"""Subresources that are no part of their object."""
# That PATCH knows "fieldValidation" is what kubectl looks for to leave validation to the server.
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")


def answer(catalogue: Catalogue, path: str) -> Obj | None:
    """Answer to a GET of a path of discovery; None if nothing is served there."""
    groups = {group["name"]: group for group in _groups(catalogue)}
    found: Obj | None = None
    match path.strip("/").split("/"):
        case ["version"]:
            found = _VERSION
        case ["api"]:
            found = {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            found = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*groups.values()]}
        case ["apis", name] if name in groups:
            found = {"kind": "APIGroup", "apiVersion": "v1"} | groups[name]
        case ["api" | "apis", _, *_] if served := _served(catalogue, path.strip("/")):
            found = {"kind": "APIResourceList", "groupVersion": served[0].api_version}
            found["resources"] = [entry for resource in served for entry in _entries(resource)]
        case ["openapi", "v3"]:
            found = {"paths": {prefix: _link(catalogue, prefix) for prefix in _prefixes(catalogue)}}
        case ["openapi", "v3", *rest]:
            found = _document(catalogue, "/".join(rest))
    return found


def _groups(catalogue: Catalogue) -> list[Obj]:
    versions: dict[str, list[str]] = {}
    for resource in catalogue.all():
        if resource.group and resource.version not in versions.setdefault(resource.group, []):
            versions[resource.group].append(resource.version)
    groups = []
    for name, found in versions.items():
        found.sort(key=lambda v: ("alpha" in v, "beta" in v, v))
        entries = [{"groupVersion": f"{name}/{v}", "version": v} for v in found]
        groups.append({"name": name, "versions": entries, "preferredVersion": entries[0]})
    return groups


def _served(catalogue: Catalogue, prefix: str) -> list[ResourceType]:
    return [resource for resource in catalogue.all() if _prefix(resource) == prefix]


def _entries(resource: ResourceType) -> list[Obj]:
    """A resource and its subresources, as one list names them."""
    scope = {"namespaced": resource.namespaced}
    own: Obj = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "kind": resource.kind,
        "verbs": _VERBS,
    }
    for name, words in (("shortNames", resource.short_names), ("categories", resource.categories)):
        if words:
            own[name] = list(words)
    whole = {"kind": resource.kind, "verbs": ["get", "patch", "update"]}
    inner = [
        {"name": f"{resource.plural}/{name}", "singularName": ""} | scope | _CALLS.get(name, whole)
        for name in resource.subresources
    ]
    return [own | scope, *inner]


def _prefixes(catalogue: Catalogue) -> list[str]:
    return list(dict.fromkeys(map(_prefix, catalogue.all())))


def _prefix(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _link(catalogue: Catalogue, prefix: str) -> Obj:
    """Place of a document, whose hash changes with it."""
    digest = hashlib.sha256(repr(_document(catalogue, prefix)).encode()).hexdigest().upper()
    return {"serverRelativeURL": f"/openapi/v3/{prefix}?hash={digest}"}


def _document(catalogue: Catalogue, prefix: str) -> Obj | None:
    """The operations of a group and version that clients look at; no schemas."""
    served = _served(catalogue, prefix)
    if not served:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": _VERSION["gitVersion"]},
        "paths": dict(map(_path, served)),
        "components": {"schemas": {}},
    }


def _path(resource: ResourceType) -> tuple[str, Obj]:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    text = {"type": "string", "uniqueItems": True}
    patch = {
        "operationId": f"patch{resource.kind}",
        "parameters": [{"name": n, "in": "query", "schema": text} for n in _PARAMETERS],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
    }
    return f"/{_prefix(resource)}/{scope}{resource.plural}/{{name}}", {"patch": patch}
