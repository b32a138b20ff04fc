"""Discovery: which groups, versions and resources are served, in all the forms clients ask for."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.schema.resources import ALL_VERBS

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import Catalogue, ResourceType

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
_SUBRESOURCE_KINDS = {
    "binding": ("Binding", "v1", "", ("create",)),
    "eviction": ("Eviction", "v1", "policy", ("create",)),
    "log": ("Pod", "v1", "", ("get",)),
}
_GET_PATCH_UPDATE = ("get", "patch", "update")


def api_versions() -> Obj:
    """Answers GET /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}],
    }


def groups(catalogue: Catalogue) -> dict[str, list[str]]:
    """The served versions of every group, the preferred one first."""
    found: dict[str, list[str]] = {}
    for resource in catalogue.all():
        versions = found.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return {group: sorted(versions, key=_priority) for group, versions in found.items()}


def _priority(version: str) -> tuple[int, str]:
    stability = 2 if "alpha" in version else 1 if "beta" in version else 0
    return stability, version


def group_list(catalogue: Catalogue) -> Obj:
    """Answers GET /apis."""
    named = [_group(name, versions) for name, versions in groups(catalogue).items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}


def _group(name: str, versions: list[str]) -> Obj:
    entries = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def group(catalogue: Catalogue, name: str) -> Obj | None:
    """Answers GET /apis/<group>."""
    versions = groups(catalogue).get(name)
    if not versions:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(name, versions)


def resource_list(catalogue: Catalogue, group: str, version: str) -> Obj | None:
    """Answers GET /api/v1 and /apis/<group>/<version>."""
    served = [t for t in catalogue.all() if (t.group, t.version) == (group, version)]
    if not served:
        return None
    entries: list[Obj] = []
    for resource in served:
        entry = _named(resource) | {
            "name": resource.plural,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(ALL_VERBS),
        }
        if resource.categories:
            entry["categories"] = list(resource.categories)
        entries.append(entry)
        for name in resource.subresources:
            kind, verbs, responds = _subresource(resource, name)
            entries.append(
                {
                    "name": f"{resource.plural}/{name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": kind,
                    "verbs": verbs,
                }
                | ({} if name not in _SUBRESOURCE_KINDS else responds)
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": entries,
    }


def _named(resource: ResourceType) -> Obj:
    named: Obj = {"singularName": resource.singular or resource.kind.lower()}
    if resource.short_names:
        named["shortNames"] = list(resource.short_names)
    return named


def _subresource(resource: ResourceType, name: str) -> tuple[str, list[str], Obj]:
    if name not in _SUBRESOURCE_KINDS:
        verbs = ["update"] if name == "finalize" else list(_GET_PATCH_UPDATE)
        here = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        return resource.kind, verbs, here
    kind, version, group, verbs_ = _SUBRESOURCE_KINDS[name]
    return kind, list(verbs_), {"group": group, "version": version, "kind": kind}


def aggregated(catalogue: Catalogue, *, core: bool) -> Obj:
    """Answers GET /api or /apis in the aggregated form, which modern kubectl asks for first."""
    items = []
    by_group = groupby(catalogue.all(), key=lambda t: t.group)
    for name, members in by_group:
        if (name == "") != core:
            continue
        versions: dict[str, list[Obj]] = {}
        for resource in members:
            versions.setdefault(resource.version, []).append(_aggregated_resource(resource))
        items.append(
            {
                "metadata": {"name": name} if name else {},
                "versions": [
                    {"version": v, "resources": versions[v], "freshness": "Current"}
                    for v in sorted(versions, key=_priority)
                ],
            }
        )
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _aggregated_resource(resource: ResourceType) -> Obj:
    names = _named(resource)
    entry: Obj = {
        "resource": resource.plural,
        "responseKind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": names["singularName"],
        "verbs": list(ALL_VERBS),
    }
    if resource.short_names:
        entry["shortNames"] = names["shortNames"]
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = []
        for name in resource.subresources:
            _, verbs, responds = _subresource(resource, name)
            entry["subresources"].append(
                {"subresource": name, "responseKind": responds, "verbs": verbs}
            )
    return entry
