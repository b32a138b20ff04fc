"""Rules of CustomResourceDefinitions that a hand-written one breaks first."""

from __future__ import annotations

from dra.common.resources import Obj
from sim.apiserver.refusals.causes import Cause, invalid, not_supported, required

_SCOPES = ("Cluster", "Namespaced")


def check_definition(definition: Obj) -> list[Cause]:
    """Checks names and scope, and that one version is stored and all have schemas."""
    spec, metadata = definition.get("spec", {}), definition["metadata"]
    names = spec.get("names", {})
    causes = [
        required(f"spec.{field}") for field in ("group", "scope", "versions") if not spec.get(field)
    ]
    causes += [
        required(f"spec.names.{field}") for field in ("plural", "kind") if not names.get(field)
    ]
    if causes:
        return causes
    wanted = f"{names['plural']}.{spec['group']}"
    if metadata.get("name") != wanted:
        text = 'must be spec.names.plural+"."+spec.group'
        causes.append(invalid("metadata.name", metadata.get("name"), text))
    if spec["scope"] not in _SCOPES:
        causes.append(not_supported("spec.scope", spec["scope"], _SCOPES))
    stored = [version for version in spec["versions"] if version.get("storage")]
    if len(stored) != 1:
        text = "must have exactly one version marked as storage version"
        causes.append(invalid("spec.versions", len(stored), text))
    causes += [
        required(f"spec.versions[{index}].schema.openAPIV3Schema", "schemas are required")
        for index, version in enumerate(spec["versions"])
        if not version.get("schema", {}).get("openAPIV3Schema")
    ]
    return causes
