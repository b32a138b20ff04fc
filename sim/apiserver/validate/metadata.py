"""Rules of `metadata`, the same for every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import Cause, forbidden, invalid, required

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.apiserver.schema.resources import ResourceType

_IMMUTABLE = "field is immutable"
_BUILTIN_FINALIZERS = ("foregroundDeletion", "orphan", "kubernetes")


def name_rule(resource: ResourceType) -> Callable[[str], str | None]:
    """The syntax check for names of this resource."""
    if resource.group == "rbac.authorization.k8s.io":
        return names.path_segment
    if resource.plural in ("namespaces", "services"):
        return names.dns_label
    return names.dns_subdomain


def check_metadata(resource: ResourceType, metadata: Obj) -> list[Cause]:
    """Checks names, labels and finalizers."""
    causes: list[Cause] = []
    generated = metadata.get("generateName", "")
    if generated and (complaint := name_rule(resource)(generated.rstrip("-") or "-")):
        causes.append(invalid("metadata.generateName", generated, complaint))
    name = metadata.get("name", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif complaint := name_rule(resource)(name):
        causes.append(invalid("metadata.name", name, complaint))
    causes += check_labels(metadata.get("labels", {}), "metadata.labels")
    for index, finalizer in enumerate(metadata.get("finalizers", [])):
        complaint = names.qualified_name(finalizer)
        if not complaint and "/" not in finalizer and finalizer not in _BUILTIN_FINALIZERS:
            complaint = "name is neither a standard finalizer name nor is it fully qualified"
        if complaint:
            causes.append(invalid(f"metadata.finalizers[{index}]", finalizer, complaint))
    return causes


def check_labels(labels: Obj, path: str) -> list[Cause]:
    """Checks the syntax of label keys and values."""
    causes = []
    for key, value in labels.items():
        if complaint := names.qualified_name(key):
            causes.append(invalid(path, key, complaint))
        if complaint := names.label_value(value):
            causes.append(invalid(path, value, complaint))
    return causes


def check_metadata_update(new: Obj, old: Obj) -> list[Cause]:
    """Checks what an update may not change; new finalizers are refused during deletion."""
    causes = []
    if new.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers", [])) - set(old.get("finalizers", [])))
        if added:
            text = (
                "no new finalizers can be added if the object is being deleted, found new "
                "finalizers []string{" + ", ".join(f'"{name}"' for name in added) + "}"
            )
            causes.append(forbidden("metadata.finalizers", text))
    return causes + [
        invalid(f"metadata.{field}", new.get(field), _IMMUTABLE)
        for field in ("name", "namespace", "uid", "creationTimestamp")
        if new.get(field) != old.get(field)
    ]
