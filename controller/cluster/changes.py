"""Changes that the mirrors report, taken into the cluster index."""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster.cluster import Cluster
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.kube.mirror.reflector import Change

_log = logging.getLogger(__name__)

MIRRORED = (DEVICE_CLASSES, NODES, MIG_NODES, RESOURCE_CLAIMS, PODS)
"""What is mirrored while leading."""


def apply(cluster: Cluster, changes: list[tuple[Resource, Change]]) -> None:
    """Take changes, in their order; an object that cannot be understood is left out."""
    for resource, change in changes:
        try:
            if change.new is not None:
                _SETTERS[resource](cluster, change.new)
            elif change.old is not None:
                _REMOVERS[resource](cluster, change.old)
        except (KeyError, TypeError, ValueError, AttributeError):
            obj = change.new or change.old or {}
            name = obj.get("metadata", {}).get("name")
            fields = {"resource": str(resource), "object": name}
            _log.exception("left out: an object that cannot be understood", extra=fields)


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


_SETTERS: dict[Resource, Callable[[Cluster, Obj], None]] = {
    NODES: Cluster.set_node,
    MIG_NODES: Cluster.set_mignode,
    PODS: Cluster.set_pod,
    RESOURCE_CLAIMS: Cluster.set_claim,
    DEVICE_CLASSES: Cluster.set_class,
}
_REMOVERS: dict[Resource, Callable[[Cluster, Obj], None]] = {
    NODES: lambda cluster, obj: cluster.remove_node(_name(obj)),
    MIG_NODES: lambda cluster, obj: cluster.remove_mignode(_name(obj)),
    PODS: lambda cluster, obj: cluster.remove_pod(_key(obj)),
    RESOURCE_CLAIMS: lambda cluster, obj: cluster.remove_claim(_key(obj)),
    DEVICE_CLASSES: lambda cluster, obj: cluster.remove_class(_name(obj)),
}
