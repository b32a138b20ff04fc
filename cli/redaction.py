"""Redaction of objects and logs before they leave the cluster. Pure.

Names of objects stay, as nothing could be understood without them. The fields that stay are listed,
not those that go: a field that a later Kubernetes adds does not leave the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dra.common.resources import Obj, at, picked

REDACTED = "redacted"
"""Text in place of a value that was left out, where it matters that there was one."""

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "ownerReferences",
)
_POD = (
    "nodeName",
    "schedulingGates",
    "schedulerName",
    "priority",
    "resourceClaims",
    "tolerations",
    "nodeSelector",
    "affinity",
    "topologySpreadConstraints",
)
_POD_STATUS = ("phase", "reason", "message", "conditions", "resourceClaimStatuses")
_NODE_LABELS = re.compile(r"(^|\.)(nvidia\.com|kubernetes\.io|k8s\.io|openshift\.io)/")
_NODE_STATUS = ("conditions", "capacity", "allocatable", "nodeInfo")
_SECRETS = re.compile(r"(?i)\b(bearer\s+|token[\"']?\s*[=:]\s*[\"']?)[\w.~+/=-]{8,}")


def pod(obj: Mapping[str, Any], *, whole: bool = False) -> Obj:
    """A pod: what it asks for, and its state; ``whole`` adds how its programs are started.

    Values of environment variables are never in it.
    """
    spec = picked(at(obj, "spec", default={}), _POD)
    for kind in ("containers", "initContainers"):
        found = [_container(each, whole=whole) for each in at(obj, "spec", kind)]
        if found:
            spec[kind] = found
    status = picked(at(obj, "status", default={}), _POD_STATUS)
    states = [
        picked(each, ("name", "ready", "restartCount", "state", "lastState", "imageID"))
        for each in at(obj, "status", "containerStatuses")
    ]
    if states:
        status["containerStatuses"] = states
    return _object(obj, spec=spec, status=status)


def node(obj: Mapping[str, Any]) -> Obj:
    """A node: its resources, taints, conditions, and labels of Kubernetes and NVIDIA."""
    made = _object(
        obj,
        spec=picked(at(obj, "spec", default={}), ("taints", "unschedulable")),
        status=picked(at(obj, "status", default={}), _NODE_STATUS),
    )
    labels = at(obj, "metadata", "labels", default={})
    made["metadata"]["labels"] = {k: v for k, v in labels.items() if _NODE_LABELS.search(k)}
    return made


def claim(obj: Mapping[str, Any], driver: str) -> Obj:
    """A claim or DeviceClass, without the parameters of other drivers."""
    spec, status = (_parameters(obj.get(part), driver) for part in ("spec", "status"))
    return _object(obj, spec=spec, status=status)


def plain(obj: Mapping[str, Any]) -> Obj:
    """An object of the driver or an administrator, without labels, annotations, field managers."""
    made = {key: value for key, value in obj.items() if key != "metadata"}
    return {**made, "metadata": picked(obj["metadata"], _METADATA)}


def event(obj: Mapping[str, Any]) -> Obj:
    """An event: its object, reason, message, number and times."""
    fields = ("involvedObject", "regarding", "reason", "message", "note", "type", "count", "series")
    times = ("firstTimestamp", "lastTimestamp", "eventTime", "reportingComponent", "source")
    return picked(obj, (*fields, *times))


def log(text: str) -> str:
    """A log in which what looks like a credential is redacted."""
    return _SECRETS.sub(rf"\1{REDACTED}", text)


def _container(found: Mapping[str, Any], *, whole: bool) -> Obj:
    fields = ("name", "resources", *(("image", "command", "args") if whole else ()))
    made = picked(found, fields)
    if whole and at(found, "env"):
        made["env"] = [{"name": each["name"], "value": REDACTED} for each in found["env"]]
    return made


def _parameters(found: Any, driver: str) -> Any:
    """A copy in which opaque parameters and data of other drivers are redacted at any depth."""
    if isinstance(found, list):
        return [_parameters(each, driver) for each in found]
    if not isinstance(found, dict):
        return found
    if "parameters" in found and found.get("driver") != driver:
        return {**found, "parameters": REDACTED}
    if found.get("driver", driver) != driver and "data" in found:
        return {**found, "data": REDACTED}
    return {key: _parameters(value, driver) for key, value in found.items()}


def _object(obj: Mapping[str, Any], *, spec: Any, status: Any) -> Obj:
    made: Obj = picked(obj, ("apiVersion", "kind"))
    made["metadata"] = picked(obj["metadata"], _METADATA)
    return made | {k: v for k, v in (("spec", spec), ("status", status)) if v}
