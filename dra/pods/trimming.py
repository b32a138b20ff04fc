"""Fields of a pod that are read: the others would take megabytes for 40,000 pods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from dra.claims.conditions import SENT
from dra.common.cache import decoded_weight
from dra.common.resources import Obj, at, picked
from dra.pods.pods import CPU, DEFAULT_SCHEDULER, UNREAD, effective_request

POD_BYTES = 192 * 2**10
"""Most memory for the kept part of one pod, roughly."""

MOST_TERMS = 200
"""Most terms, their parts and tolerations: JSON objects to compare with nodes and pods."""

MOST_RESOURCES = 64
"""Most different resources that a pod asks for."""

MOST_CLAIMS = 128
"""Most claims of a pod."""

MOST_VOLUMES = 64
"""Most volumes of a pod that have PersistentVolumeClaims."""

MOST_PORTS = 128
"""Most host ports of a pod."""

_KEPT_CLAIMS = 64
"""Claims and gates that are kept of a pod that is not read."""

_FEW_CLAIMS = 4
"""The same where the large pods of a namespace are too many."""

_LABELS_BYTES = 16 * 2**10
_COMPARED = ("affinity", "topologySpreadConstraints", "tolerations")
_KEPT = (
    *("nodeName", "priority", "preemptionPolicy", "schedulingGates"),
    *("schedulingGroup", "workloadRef"),
)
_NATIVE = (CPU, "memory", "ephemeral-storage")
_USUAL_BYTES = 2**10
"""Text of a pod that is not looked at further."""


def bounded(pod: Obj) -> Obj:
    """``pod``; of one that is too large, only what decisions on other pods need.

    A pod that is too large is not served, and its spec says why in the field ``UNREAD``.
    """
    text = msgspec.json.encode(pod)
    if len(text) <= _USUAL_BYTES:
        return pod
    spec: Obj = pod["spec"]
    why = _excess(text, spec)
    return _stub(pod, spec, why) if why else pod


def unread(pod: Obj, why: str) -> Obj:
    """The least of ``pod`` that decisions on other pods need: a kilobyte or two."""
    stub = _stub(pod, pod["spec"], why)
    metadata, spec, status = stub["metadata"], stub["spec"], stub["status"]
    for field in ("labels", "annotations"):
        metadata.pop(field, None)
    for holder, field in (
        (metadata, "ownerReferences"),
        (spec, "schedulingGates"),
        (spec, "resourceClaims"),
        (status, "resourceClaimStatuses"),
        (status, "conditions"),
    ):
        if field in holder:
            holder[field] = holder[field][:_FEW_CLAIMS]
    return stub


def _excess(text: bytes, spec: Mapping[str, Any]) -> str:
    """Excess of a pod over what is read of it, in words; empty where there is none."""
    weight = decoded_weight(text)
    if weight > POD_BYTES:
        return f"labels and spec take {weight // 1024} KiB, and {POD_BYTES // 1024} are read"
    if text.count(b"{") > MOST_TERMS:
        compared = msgspec.json.encode([spec.get(field) for field in _COMPARED])
        if (terms := compared.count(b"{")) > MOST_TERMS:
            return f"affinity, spread and tolerations have {terms} parts, and {MOST_TERMS} are read"
    for what, number, most in _counted(spec):
        if number > most:
            return f"it has {number} {what}, and {most} are read"
    resources = len({name for holder in _holders(spec) for name in holder})
    if resources > MOST_RESOURCES:
        return f"it asks for {resources} resources, and {MOST_RESOURCES} are read"
    return ""


def _counted(spec: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Kinds of things in a pod, each with its number and with the most that are read."""
    containers = (*at(spec, "containers"), *at(spec, "initContainers"))
    yield "claims", len(at(spec, "resourceClaims")), MOST_CLAIMS
    yield "volumes with claims", len(at(spec, "volumes")), MOST_VOLUMES
    yield "host ports", sum(len(at(each, "ports")) for each in containers), MOST_PORTS


def _holders(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The requests and limits of a pod and of its containers."""
    yield at(spec, "overhead", default={})
    for body in (spec, *at(spec, "containers"), *at(spec, "initContainers")):
        yield at(body, "resources", "requests", default={})
        yield at(body, "resources", "limits", default={})


def _stub(pod: Obj, spec: Obj, why: str) -> Obj:
    """The rest of a pod that is not read: the node's resources that it takes, gang and claims."""
    metadata, status = dict(pod["metadata"]), dict(pod.get("status") or {})
    if decoded_weight(msgspec.json.encode(metadata.get("labels"))) > _LABELS_BYTES:
        del metadata["labels"]
    if made := at(status, "resourceClaimStatuses"):
        status["resourceClaimStatuses"] = made[:_KEPT_CLAIMS]
    kept: Obj = {field: spec[field] for field in _KEPT if field in spec}
    for field in ("schedulingGates", "resourceClaims"):
        if found := at(spec, field):
            kept[field] = found[:_KEPT_CLAIMS]
    kept["containers"] = [{"name": "", "resources": {"requests": _takes(spec)}}]
    kept[UNREAD] = why
    return {"metadata": metadata, "spec": kept, "status": status}


def _takes(spec: Obj) -> dict[str, str]:
    """The resources of a node itself that the pod takes."""
    fields = ("containers", "initContainers")
    slim = {field: [_native(c) for c in at(spec, field)] for field in fields}
    overhead = picked(at(spec, "overhead", default={}), _NATIVE)
    takes = effective_request({**_native(spec), **slim, "overhead": overhead})
    return {n: f"{takes[n]}m" if n == CPU else str(takes[n]) for n in _NATIVE if n in takes}


def _native(body: Obj) -> Obj:
    """A container, or a pod, that asks for nothing but a node's own resources."""
    asked: Obj = at(body, "resources", default={})
    kept = {key: picked(at(asked, key, default={}), _NATIVE) for key in ("requests", "limits")}
    return {"resources": kept, "restartPolicy": body.get("restartPolicy")}


NAME_LENGTH = 254
"""One more than the longest name: a longer text names nothing."""

_METADATA = (
    *("name", "namespace", "uid", "labels"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
"""Fields without the resourceVersion, so that a change of other fields does not count."""
_SPEC = (
    *("overhead", "resources", "affinity", "priority", "nodeName"),
    *("schedulingGroup", "workloadRef"),
)
"""Kept of every pod: the resources that it takes, the pods that it shuns, and its gang."""
_OWN_SPEC = (
    *_SPEC,
    *("nodeSelector", "tolerations", "topologySpreadConstraints", "preemptionPolicy"),
    *("schedulingGates", "resourceClaims", "hostUsers"),
)
"""Kept of pods with claims: also the fields that decide where they may go."""
_STATUS = ("phase", "resourceClaimStatuses", "nominatedNodeName")
_OWNER = ("kind", "controller", "uid")
_CONTAINER = ("name", "resources", "restartPolicy")
_PORT = ("hostPort", "hostIP", "protocol")


def trim_pod(obj: Obj, annotations: Collection[str]) -> Obj:
    """The part of ``obj`` that is read, with those of ``annotations`` that it has.

    Of a pod that is too large less is left, and ``UNREAD`` in its spec says why. ``obj`` itself is
    not changed. A malformed object raises KeyError, TypeError or AttributeError.
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
    if own := _own_conditions(status.get("conditions") or ()):
        said["conditions"] = own
    metadata = picked(obj["metadata"], _METADATA)
    if notes := picked(obj["metadata"].get("annotations") or {}, annotations):
        metadata["annotations"] = {key: text[:NAME_LENGTH] for key, text in notes.items()}
    if owners := metadata.pop("ownerReferences", None):
        kept = [cut_owner(picked(o, _OWNER)) for o in owners if o.get("controller")]
        metadata["ownerReferences"] = kept
    return bounded({"metadata": metadata, "spec": slim, "status": said})


def _own_conditions(conditions: Iterable[Obj]) -> list[Obj]:
    """Our own of a pod's conditions; of Kubernetes' that of a pod that was sent to kube-scheduler.

    That changes seldom then; of other pods it would be one more change to look at.
    """
    own = [c for c in conditions if "/" in c["type"]]
    if any(c["type"].endswith(f"/{SENT}") for c in own):
        own += [c for c in conditions if c["type"] == "PodScheduled"]
    return own


def cut_owner(texts: Obj) -> Obj:
    """Reference to an owner, with texts cut to ``NAME_LENGTH``."""
    return {k: v[:NAME_LENGTH] if isinstance(v, str) else v for k, v in texts.items()}


def _container(container: Obj) -> Obj:
    slim = picked(container, _CONTAINER)
    if ports := [picked(p, _PORT) for p in container.get("ports") or () if p.get("hostPort")]:
        slim["ports"] = ports
    return slim


def _volume(volume: Obj) -> Obj | None:
    """The part of a volume that leads to its PersistentVolumeClaim; None if it has none."""
    if claim := volume.get("persistentVolumeClaim"):
        return {"persistentVolumeClaim": picked(claim, ("claimName",))}
    return {"name": volume["name"], "ephemeral": {}} if "ephemeral" in volume else None


def _shunning(affinity: Obj) -> Obj | None:
    """Required anti-affinity between pods, which concerns other pods too; None without any."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    required = (affinity.get("podAntiAffinity") or {}).get(field)
    return {"podAntiAffinity": {field: required}} if required else None
