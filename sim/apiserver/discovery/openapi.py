"""OpenAPI documents of what is served, version 3: kubectl explains from them and validates by them.

Built-in kinds are described as the official client's models know them, custom ones by their schema.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.discovery.groups import VERSION
from sim.apiserver.schema import models

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import Catalogue, ResourceType

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
