"""Fields of a pod that are read: the rest is megabytes for 40,000 pods."""

from __future__ import annotations

from collections.abc import Collection

from dra.common.resources import Obj, picked
from dra.pods.pods import DEFAULT_SCHEDULER
from dra.pods.trimming.size import bounded

NAME_LENGTH = 254
"""One more than a name may have: what is longer names nothing."""

_METADATA = (
    *("name", "namespace", "uid", "labels"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
"""Without the resourceVersion: a change of nothing that is kept is none."""
_SPEC = (
    *("overhead", "resources", "affinity", "priority", "nodeName"),
    *("schedulingGroup", "workloadRef"),
)
"""Of every pod: what it takes of its node, whom it shuns, and with which it belongs together."""
_OWN_SPEC = (
    *_SPEC,
    *("nodeSelector", "tolerations", "topologySpreadConstraints", "preemptionPolicy"),
    *("schedulingGates", "resourceClaims", "hostUsers"),
)
"""Of pods with claims: also where they may go."""
_STATUS = ("phase", "resourceClaimStatuses", "nominatedNodeName")
_OWNER = ("kind", "controller", "uid")
_CONTAINER = ("name", "resources", "restartPolicy")
_PORT = ("hostPort", "hostIP", "protocol")


def trim_pod(obj: Obj, annotations: Collection[str]) -> Obj:
    """The part of ``obj`` that is read, with those of ``annotations`` that it has.

    Of one that is too large less is left, and ``UNREAD`` in its spec says why. ``obj`` stays as it
    is. What is not as it should be raises KeyError, TypeError or AttributeError.
    """
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if spec.get("resourceClaims"):
        slim = picked(spec, _OWN_SPEC)
        if (scheduler := spec.get("schedulerName") or DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
            slim["schedulerName"] = scheduler[:NAME_LENGTH]
        if volumes := [v for v in map(_volume, spec.get("volumes") or ()) if v]:
            slim["volumes"] = volumes
    else:
        slim = picked(spec, _SPEC)
        if affinity := _shunning(slim.pop("affinity", None) or {}):
            slim["affinity"] = affinity
    for field in ("containers", "initContainers"):
        if field in spec:
            slim[field] = [_container(c) for c in spec[field]]
    said = picked(status, _STATUS)
    # What Kubernetes says of a pod is nothing to us, unlike what we said ourselves.
    if own := [c for c in status.get("conditions") or () if "/" in c["type"]]:
        said["conditions"] = own
    metadata = picked(obj["metadata"], _METADATA)
    if notes := picked(obj["metadata"].get("annotations") or {}, annotations):
        metadata["annotations"] = {key: text[:NAME_LENGTH] for key, text in notes.items()}
    if owners := metadata.pop("ownerReferences", None):
        kept = [cut_owner(picked(o, _OWNER)) for o in owners if o.get("controller")]
        metadata["ownerReferences"] = kept
    return bounded({"metadata": metadata, "spec": slim, "status": said})


def cut_owner(texts: Obj) -> Obj:
    """Reference to an owner whose texts are no longer than what names something."""
    return {k: v[:NAME_LENGTH] if isinstance(v, str) else v for k, v in texts.items()}


def _container(container: Obj) -> Obj:
    slim = picked(container, _CONTAINER)
    if ports := [picked(p, _PORT) for p in container.get("ports") or () if p.get("hostPort")]:
        slim["ports"] = ports
    return slim


def _volume(volume: Obj) -> Obj | None:
    """The PersistentVolumeClaim of a volume; None of one without."""
    if claim := volume.get("persistentVolumeClaim"):
        return {"persistentVolumeClaim": picked(claim, ("claimName",))}
    return {"name": volume["name"], "ephemeral": {}} if "ephemeral" in volume else None


def _shunning(affinity: Obj) -> Obj | None:
    """Required anti-affinity between pods, which binds others too."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    required = (affinity.get("podAntiAffinity") or {}).get(field)
    return {"podAntiAffinity": {field: required}} if required else None
