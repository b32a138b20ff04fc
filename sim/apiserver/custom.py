"""Custom resources: their definitions, and the life cycle of their objects.

An object is cut to the fields of its schema; whether their values fit it a real API server says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj, at
from sim.apiserver.kinds import Environment, Kind
from sim.apiserver.resources import CUSTOM_RESOURCE_DEFINITIONS, METADATA, ResourceType
from sim.apiserver.shapes import ANY, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.apiserver.resources import Catalogue
    from sim.apiserver.store import Change


def custom_kind(resource: ResourceType) -> Kind:
    """The life cycle of a custom resource's objects."""
    return Kind(
        selectable=tuple(path.lstrip(".") for path in resource.selectable),
        bumps_generation=True,
        status_carries_metadata=False,
    )


def _resource_types(definition: Obj) -> Iterator[ResourceType]:
    """Resource types of a CustomResourceDefinition, one for each served version."""
    spec = definition["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        if version.get("served"):
            yield ResourceType(
                group=spec["group"],
                version=version["name"],
                plural=names["plural"],
                kind=names["kind"],
                namespaced=spec["scope"] == "Namespaced",
                shape=_root_shape(at(version, "schema", "openAPIV3Schema", default={})),
                subresources=("status",) if "status" in version.get("subresources", {}) else (),
                short_names=tuple(names.get("shortNames", [])),
                categories=tuple(names.get("categories", [])),
                singular=names["singular"],
                custom=True,
                columns=tuple(version.get("additionalPrinterColumns", [])),
                selectable=tuple(f["jsonPath"] for f in version.get("selectableFields", [])),
            )


def _root_shape(schema: Obj) -> Shape:
    shape = _shape_of(schema)
    own = {"apiVersion": ANY, "kind": ANY, "metadata": METADATA}
    return Shape("struct", shape.fields | own, closed=shape.closed)


def _shape_of(schema: Obj) -> Shape:
    """The shape that a structural schema describes; types are checked elsewhere."""
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if schema.get("type") == "array":
        list_type = schema.get("x-kubernetes-list-type", "atomic")
        return Shape(
            "list",
            item=_shape_of(schema.get("items", {})),
            keys=tuple(schema.get("x-kubernetes-list-map-keys", [])) if list_type == "map" else (),
            is_set=list_type == "set",
            atomic=list_type == "atomic",
        )
    if schema.get("type") != "object":
        return ANY
    extra = schema.get("additionalProperties")
    if extra and "properties" not in schema:
        item = _shape_of(extra) if isinstance(extra, dict) else ANY
        return Shape("map", item=item, atomic=atomic)
    fields = {name: _shape_of(inner) for name, inner in schema.get("properties", {}).items()}
    closed = not schema.get("x-kubernetes-preserve-unknown-fields")
    return Shape("struct", fields, closed=closed, atomic=atomic)


def serve_definitions(env: Environment, catalogue: Catalogue) -> None:
    """Serves what definitions define from now on, and marks them as established."""
    store = env.store

    def see(change: Change) -> None:
        if change.family != CUSTOM_RESOURCE_DEFINITIONS.family:
            return
        definition = change.new.copy()
        spec = definition["spec"]
        family = spec["group"], spec["names"]["plural"]
        catalogue.withdraw(family)
        if change.type == "DELETED":
            for record in store.records(family):
                store.remove(family, record.copy())
            return
        for resource in _resource_types(definition):
            catalogue.serve(resource)
        status = _established(definition, env.timestamp())
        if definition.get("status") != status:
            store.put(change.family, definition | {"status": status})

    store.listen(see)


def _established(definition: Obj, now: str) -> Obj:
    spec, old = definition["spec"], definition.get("status", {})
    stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
    since = {c["type"]: c["lastTransitionTime"] for c in old.get("conditions", [])}
    conditions = [
        {
            "type": kind,
            "status": "True",
            "lastTransitionTime": since.get(kind, now),
            "reason": reason,
            "message": message,
        }
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    versions = list(dict.fromkeys([*old.get("storedVersions", []), stored]))
    names = spec["names"]
    return {"acceptedNames": names, "conditions": conditions, "storedVersions": versions}
