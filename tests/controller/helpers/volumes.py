"""PersistentVolumes, their claims and classes for the tests of the controller."""

from __future__ import annotations

from typing import Any

from dra.common.resources import Obj
from tests.controller.helpers.objects import versioned
from tests.helpers.fields import checked

ZONE = "topology.kubernetes.io/zone"


def volume_claim(
    name: str,
    *,
    volume: str = "",
    bound: bool | None = None,
    class_name: str = "",
    size: str = "1Gi",
    node: str = "",
    phase: str = "",
    owner: str = "",
    namespace: str = "default",
    **spec: Any,
) -> Obj:
    """A PersistentVolumeClaim; one with a volume is bound to it unless told otherwise."""
    annotations = {}
    if bound if bound is not None else volume:
        annotations["pv.kubernetes.io/bind-completed"] = "yes"
    if node:
        annotations["volume.kubernetes.io/selected-node"] = node
    metadata: Obj = {"name": name, "namespace": namespace, "annotations": annotations}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Pod", "uid": owner, "controller": True}]
    body = {"volumeName": volume} if volume else {}
    resources = {"requests": {"storage": size}}
    default = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
    return versioned(
        {
            "metadata": metadata,
            "spec": {
                **default,
                "resources": resources,
                **body,
                **checked("V1PersistentVolumeClaimSpec", spec),
            },
            "status": {"phase": phase or ("Bound" if volume else "Pending")},
        }
    )


def volume(
    name: str,
    *,
    size: str = "1Gi",
    class_name: str = "",
    zone: str = "",
    host: str = "",
    labels: dict[str, str] | None = None,
    phase: str = "Available",
    **spec: Any,
) -> Obj:
    """A PersistentVolume, by node affinity of one zone or host if one is given."""
    where = {ZONE: zone, "kubernetes.io/hostname": host}
    expressions = [{"key": k, "operator": "In", "values": [v]} for k, v in where.items() if v]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    default = {"accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
    affinity = {"nodeAffinity": terms} if expressions else {}
    return versioned(
        {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                **default,
                "capacity": {"storage": size},
                **affinity,
                **checked("V1PersistentVolumeSpec", spec),
            },
            "status": {"phase": phase},
        }
    )


def storage_class(
    name: str, *, waits: bool = True, makes: bool = True, zones: tuple[str, ...] = ()
) -> Obj:
    """A StorageClass; with zones volumes are made there only."""
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": [*zones]}]}] if zones else []
    return versioned(
        {
            "metadata": {"name": name},
            "provisioner": "csi.example.com" if makes else "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
            "allowedTopologies": terms,
        }
    )


def uses(*claims: str) -> list[Obj]:
    """The volumes of a pod that uses PersistentVolumeClaims."""
    return [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
