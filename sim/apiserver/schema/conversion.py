"""Objects under another version than the one they are stored in: they differ in its name only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import ResourceType


def present(resource: ResourceType, obj: Obj) -> Obj:
    """A stored object as this version of its resource shows it (conversion strategy None)."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    return obj | {"apiVersion": resource.api_version}
