"""Changes that the mirrors report, taken into the cluster index."""

from __future__ import annotations

import logging
from collections.abc import Callable

from controller.cluster.cluster import VOLUMES, Cluster
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from dra.gangs.membership import KINDS
from dra.kube.reflector import Change

_log = logging.getLogger(__name__)

MIRRORED = (DEVICE_CLASSES, NODES, MIG_NODES, RESOURCE_CLAIMS, PODS)
"""Resources that are mirrored while leading."""

OPTIONAL = (*VOLUMES, NAMESPACES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES)
"""Resources that are mirrored where that is allowed.

Of ResourceClaimTemplates only those that the controller made are mirrored, of ResourceSlices only
those of other drivers.
"""


POD_GROUPS = tuple(tuple(map(kind.at_version, kind.versions)) for kind in KINDS)
"""The versions of each kind of pod group; the first one that is served is mirrored."""


def apply(cluster: Cluster, changes: list[tuple[Resource, Change | None]]) -> None:
    """Take changes, in their order; an object that cannot be understood is left out.

    None instead of a change says that all objects of the resource were listed.
    """
    for resource, change in changes:
        if change is None:
            cluster.note_listed(resource)
            continue
        try:
            if change.rewound and resource == RESOURCE_CLAIMS and change.new is not None:
                cluster.set_claim(change.new, rewound=True)
            elif change.new is not None:
                _SETTERS[resource](cluster, change.new)
            elif change.old is not None:
                _REMOVERS[resource](cluster, change.old)
        except Exception:  # noqa: BLE001 - whatever an object says, the others are to be served
            obj = change.new or change.old or {}
            name = obj.get("metadata", {}).get("name")
            fields = {"resource": str(resource), "object": name}
            _log.exception("left out: an object that cannot be understood", extra=fields)


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _set_group(resource: Resource) -> Callable[[Cluster, Obj], None]:
    return lambda cluster, obj: cluster.gangs.set_group(resource, obj)


def _remove_group(resource: Resource) -> Callable[[Cluster, Obj], None]:
    return lambda cluster, obj: cluster.gangs.remove_group(resource, _key(obj))


_SETTERS: dict[Resource, Callable[[Cluster, Obj], None]] = {
    NODES: Cluster.set_node,
    MIG_NODES: Cluster.set_mignode,
    PODS: Cluster.set_pod,
    RESOURCE_CLAIMS: Cluster.set_claim,
    DEVICE_CLASSES: Cluster.set_class,
    PERSISTENT_VOLUME_CLAIMS: Cluster.set_volume_claim,
    PERSISTENT_VOLUMES: Cluster.set_volume,
    STORAGE_CLASSES: Cluster.set_storage_class,
    NAMESPACES: Cluster.set_namespace,
    RESOURCE_CLAIM_TEMPLATES: lambda cluster, obj: cluster.templates.set(obj),
    RESOURCE_SLICES: Cluster.set_slice,
    **{resource: _set_group(resource) for of_kind in POD_GROUPS for resource in of_kind},
}
_REMOVERS: dict[Resource, Callable[[Cluster, Obj], None]] = {
    NODES: lambda cluster, obj: cluster.remove_node(_name(obj)),
    MIG_NODES: lambda cluster, obj: cluster.remove_mignode(_name(obj)),
    PODS: lambda cluster, obj: cluster.remove_pod(_key(obj)),
    RESOURCE_CLAIMS: lambda cluster, obj: cluster.remove_claim(_key(obj)),
    DEVICE_CLASSES: lambda cluster, obj: cluster.remove_class(_name(obj)),
    PERSISTENT_VOLUME_CLAIMS: lambda cluster, obj: cluster.remove_volume_claim(_key(obj)),
    PERSISTENT_VOLUMES: lambda cluster, obj: cluster.remove_volume(_name(obj)),
    STORAGE_CLASSES: lambda cluster, obj: cluster.remove_storage_class(_name(obj)),
    NAMESPACES: lambda cluster, obj: cluster.remove_namespace(_name(obj)),
    RESOURCE_CLAIM_TEMPLATES: lambda cluster, obj: cluster.templates.remove(_key(obj)),
    RESOURCE_SLICES: lambda cluster, obj: cluster.others.remove_slice(_name(obj)),
    **{resource: _remove_group(resource) for of_kind in POD_GROUPS for resource in of_kind},
}
