"""Objects under another version than the one they are stored in.

Versions of a custom resource differ in their name only (strategy None); events of events.k8s.io
are core events under other field names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import ResourceType

_EVENTS = "events.k8s.io/v1"
_RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_ORIGINAL = {new: old for old, new in _RENAMED.items()}


def present(resource: ResourceType, obj: Obj) -> Obj:
    """A stored object as this version of its resource shows it."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    if resource.api_version == _EVENTS:
        obj = {_RENAMED.get(name, name): value for name, value in obj.items()}
    return obj | {"apiVersion": resource.api_version}


def stored(resource: ResourceType, obj: Obj) -> Obj:
    """An object as it is stored."""
    if resource.api_version != _EVENTS:
        return obj
    return {_ORIGINAL.get(name, name): value for name, value in obj.items()} | {"apiVersion": "v1"}
