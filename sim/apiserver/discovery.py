"""Groups, versions and resources that are served, and as much OpenAPI as kubectl apply asks for."""

from __future__ import annotations

import hashlib
from itertools import groupby
from typing import TYPE_CHECKING

from dra.common.resources import Obj

if TYPE_CHECKING:
    from sim.apiserver.resources import Catalogue, ResourceType


_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"} | (
    dict.fromkeys(("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion"), "")
)
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_CALLS = {
    "binding": ("", "v1", "Binding", "create"),
    "eviction": ("policy", "v1", "Eviction", "create"),
    "log": ("", "v1", "Pod", "get"),
}
# That PATCH knows "fieldValidation" is what kubectl looks for to leave validation to the server.
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
_KIND = "x-kubernetes-group-version-kind"


def answer(  # noqa: PLR0911 - a table of paths
    catalogue: Catalogue, path: str, *, wants_aggregated: bool
) -> Obj | None:
    """Answer to a GET of a path of discovery; None if nothing is served there."""
    match path.strip("/").split("/"):
        case ["version"]:
            return _VERSION
        case ["api" | "apis" as root] if wants_aggregated:
            return _aggregated(catalogue, core=root == "api")
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            groups = [_group(item) for item in _aggregated(catalogue, core=False)["items"]]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", name]:
            items = _aggregated(catalogue, core=False)["items"]
            found = [_group(item) for item in items if item["metadata"]["name"] == name]
            return {"kind": "APIGroup", "apiVersion": "v1"} | found[0] if found else None
        case ["api", version]:
            return _resource_list(catalogue, "", version)
        case ["apis", group, version]:
            return _resource_list(catalogue, group, version)
        case ["openapi", "v3"]:
            return _index(catalogue)
        case ["openapi", "v3", *rest]:
            return _document(catalogue, "/".join(rest))
    return None


def _aggregated(catalogue: Catalogue, *, core: bool) -> Obj:
    items = []
    for name, members in groupby(catalogue.all(), key=lambda t: t.group):
        versions: dict[str, list[Obj]] = {}
        for resource in members:
            versions.setdefault(resource.version, []).append(_resource(resource))
        served = [
            {"version": version, "resources": versions[version], "freshness": "Current"}
            for version in sorted(versions, key=lambda v: ("alpha" in v, "beta" in v, v))
        ]
        if (name == "") == core:
            items.append({"metadata": {"name": name} if name else {}, "versions": served})
    head: Obj = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    return head | {"metadata": {}, "items": items}


def _resource_list(catalogue: Catalogue, group: str, version: str) -> Obj | None:
    entries = [
        entry
        for item in _aggregated(catalogue, core=not group)["items"]
        if item["metadata"].get("name", "") == group
        for served in item["versions"]
        if served["version"] == version
        for resource in served["resources"]
        for entry in _entries(resource)
    ]
    name = f"{group}/{version}" if group else version
    head: Obj = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name}
    return head | {"resources": entries} if entries else None


def _resource(resource: ResourceType) -> Obj:
    kind = _kind(resource)
    entry: Obj = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": _VERBS,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
        "subresources": [_subresource(name, kind) for name in resource.subresources],
    }
    return {name: value for name, value in entry.items() if value}


def _subresource(name: str, kind: Obj) -> Obj:
    if name not in _CALLS:
        return {"subresource": name, "responseKind": kind, "verbs": ["get", "patch", "update"]}
    group, version, answer, verb = _CALLS[name]
    responds = {"group": group, "version": version, "kind": answer}
    return {"subresource": name, "responseKind": responds, "verbs": [verb]}


def _group(item: Obj) -> Obj:
    name = item["metadata"]["name"]
    versions = [v["version"] for v in item["versions"]]
    entries = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _entries(resource: Obj) -> list[Obj]:
    """A resource and its subresources, as one list names them."""
    scope = {"namespaced": resource["scope"] == "Namespaced"}
    own = {"name": resource["resource"], "singularName": resource["singularResource"]}
    own |= {name: resource[name] for name in ("shortNames", "categories") if name in resource}
    kind = {"kind": resource["responseKind"]["kind"], "verbs": resource["verbs"]}
    inner = [
        {"name": f"{resource['resource']}/{sub['subresource']}", "singularName": ""}
        | scope
        | {"verbs": sub["verbs"]}
        | (sub["responseKind"] if sub["subresource"] in _CALLS else {"kind": kind["kind"]})
        for sub in resource.get("subresources", [])
    ]
    return [own | scope | kind, *inner]


def _index(catalogue: Catalogue) -> Obj:
    """One document for each group and version, whose hash changes with it."""
    paths = {}
    for prefix in dict.fromkeys(map(_prefix, catalogue.all())):
        digest = hashlib.sha256(repr(_document(catalogue, prefix)).encode()).hexdigest().upper()
        paths[prefix] = {"serverRelativeURL": f"/openapi/v3/{prefix}?hash={digest}"}
    return {"paths": paths}


def _document(catalogue: Catalogue, prefix: str) -> Obj | None:
    """The operations of a group and version that clients look at; no schemas."""
    served = [resource for resource in catalogue.all() if _prefix(resource) == prefix]
    if not served:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": _VERSION["gitVersion"]},
        "paths": dict(map(_path, served)),
        "components": {"schemas": {}},
    }


def _prefix(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _kind(resource: ResourceType) -> Obj:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _path(resource: ResourceType) -> tuple[str, Obj]:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    text = {"type": "string", "uniqueItems": True}
    patch = {
        "operationId": f"patch{resource.kind}",
        "parameters": [{"name": n, "in": "query", "schema": text} for n in _PARAMETERS],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": "patch",
        _KIND: _kind(resource),
    }
    return f"/{_prefix(resource)}/{scope}{resource.plural}/{{name}}", {"patch": patch}
