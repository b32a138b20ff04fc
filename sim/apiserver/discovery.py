"""Groups, versions and resources that are served, and their OpenAPI."""

from __future__ import annotations

import hashlib
from itertools import groupby
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver import models
from sim.apiserver.resources import ALL_VERBS

if TYPE_CHECKING:
    from sim.apiserver.resources import Catalogue, ResourceType


VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-06-08T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_CALLS = {
    "binding": ("", "v1", "Binding", "create"),
    "eviction": ("policy", "v1", "Eviction", "create"),
    "log": ("", "v1", "Pod", "get"),
}


def aggregated(catalogue: Catalogue, *, core: bool) -> Obj:
    """GET /api or /apis in the aggregated form."""
    items = []
    for name, members in groupby(catalogue.all(), key=lambda t: t.group):
        versions: dict[str, list[Obj]] = {}
        for resource in members:
            versions.setdefault(resource.version, []).append(_resource(resource))
        served = [
            {"version": version, "resources": versions[version], "freshness": "Current"}
            for version in sorted(versions, key=_priority)
        ]
        if (name == "") == core:
            items.append({"metadata": {"name": name} if name else {}, "versions": served})
    head: Obj = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2"}
    return head | {"metadata": {}, "items": items}


def api_versions() -> Obj:
    """GET /api."""
    address = {"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [address]}


def group_list(catalogue: Catalogue) -> Obj:
    """GET /apis."""
    groups = [_group(item) for item in aggregated(catalogue, core=False)["items"]]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(catalogue: Catalogue, name: str) -> Obj | None:
    """GET /apis/<group>; None for a group that is not served."""
    found = [each for each in group_list(catalogue)["groups"] if each["name"] == name]
    return {"kind": "APIGroup", "apiVersion": "v1"} | found[0] if found else None


def resource_list(catalogue: Catalogue, group: str, version: str) -> Obj | None:
    """GET /api/v1 and /apis/<group>/<version>; None for what is not served."""
    entries = [
        entry
        for item in aggregated(catalogue, core=not group)["items"]
        if item["metadata"].get("name", "") == group
        for served in item["versions"]
        if served["version"] == version
        for resource in served["resources"]
        for entry in _entries(resource)
    ]
    name = f"{group}/{version}" if group else version
    head: Obj = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name}
    return head | {"resources": entries} if entries else None


def _priority(version: str) -> tuple[int, str]:
    return (2 if "alpha" in version else 1 if "beta" in version else 0), version


def _resource(resource: ResourceType) -> Obj:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    entry: Obj = {
        "resource": resource.plural,
        "responseKind": kind,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": list(ALL_VERBS),
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


# That PATCH knows "fieldValidation" is what kubectl looks for to leave validation to the server.
_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation", "force")
_KIND = "x-kubernetes-group-version-kind"


def index(catalogue: Catalogue) -> Obj:
    """GET /openapi/v3: one document for each group and version, whose hash changes with it."""
    paths = {}
    for prefix in dict.fromkeys(map(_prefix, catalogue.all())):
        digest = hashlib.sha256(repr(_of(catalogue, prefix)).encode()).hexdigest().upper()
        paths[prefix] = {"serverRelativeURL": f"/openapi/v3/{prefix}?hash={digest}"}
    return {"paths": paths}


def document(catalogue: Catalogue, prefix: str) -> Obj | None:
    """GET /openapi/v3/<prefix>; None if nothing is served there."""
    if not (served := _of(catalogue, prefix)):
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": dict(_path(resource) for resource in served),
        "components": {"schemas": _schemas(served)},
    }


def _schemas(served: list[ResourceType]) -> dict[str, Obj]:
    """Schemas of the objects of these resources, and of all that they refer to, by name."""
    named = [(_name(resource), resource) for resource in served]
    found = models.schemas([models.METADATA, *(name for name, _ in named)])
    for name, resource in named:
        if resource.custom:
            own = {"metadata": models.reference(models.METADATA)}
            properties = resource.schema.get("properties", {}) | own
            found[name] = resource.schema | {"properties": properties}
        found[name] = found.get(name, {"type": "object"}) | {_KIND: [_kind(resource)]}
    return found


def _name(resource: ResourceType) -> str:
    described = "" if resource.custom else models.model_name(resource)
    return described or f"{resource.kind}.{resource.api_version}"


def _prefix(resource: ResourceType) -> str:
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def _of(catalogue: Catalogue, prefix: str) -> list[ResourceType]:
    return [resource for resource in catalogue.all() if _prefix(resource) == prefix]


def _kind(resource: ResourceType) -> Obj:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _path(resource: ResourceType) -> tuple[str, Obj]:
    """The path of a resource's objects, and the operations that clients look at there."""
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
