"""Subresources that are calls, not views: binding, eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.refusals import causes, errors
from sim.apiserver.verbs import deletion

if TYPE_CHECKING:
    from sim.apiserver.verbs.incoming import Target
    from sim.apiserver.verbs.registry import Registry

_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def create(registry: Registry, target: Target, body: Any) -> Obj:
    """Answers a POST to a subresource (405 if it takes none)."""
    if not isinstance(body, dict):
        raise errors.bad_request("the body of the request is no object")
    if target.subresource == "binding":
        _bind(registry, target, body)
    elif target.subresource == "eviction":
        options = deletion.parse_options(body.get("deleteOptions"), {})
        deletion.delete(registry, target, options)
    else:
        raise errors.method_not_allowed()
    return _SUCCESS


def _bind(registry: Registry, target: Target, body: Obj) -> None:
    """Gives a pod its node, once; a gated or deleted pod is refused (409)."""
    metadata = body.get("metadata") or {}
    node = _bound_to(target, metadata, body.get("target") or {})
    pod, name = registry.get(target).copy(), target.name
    have, spec = pod["metadata"], pod["spec"]
    for field in ("uid", "resourceVersion"):
        if metadata.get(field, have[field]) != have[field]:
            why = f"Precondition failed: {field} in precondition: {metadata[field]}"
            raise errors.conflict(target.resource, name, why)
    if obstacle := _obstacle(pod, name):
        binding = f'Operation cannot be fulfilled on pods/binding "{name}": {obstacle}'
        details = {"name": name, "kind": "pods/binding"}
        raise errors.ApiError(409, "Conflict", binding, details=details)
    spec["nodeName"] = node
    have["generation"] = have.get("generation", 0) + 1
    for field in ("annotations", "labels"):
        if metadata.get(field):
            have[field] = have.get(field, {}) | metadata[field]
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    conditions = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": registry.env.timestamp(),
    }
    status["conditions"] = [*conditions, scheduled]
    registry.store.put(target.resource.family, pod)


def _bound_to(target: Target, metadata: Obj, to: Obj) -> str:
    if metadata.get("name", "") != target.name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    node: str = to.get("name", "")
    if to.get("kind", "Node") not in ("", "Node"):
        cause = causes.not_supported("target.kind", to["kind"], ["Node", "<empty>"])
        raise errors.invalid(target.resource, target.name, [cause])
    if not node:
        raise errors.invalid(target.resource, target.name, [causes.required("target.name")])
    return node


def _obstacle(pod: Obj, name: str) -> str:
    spec = pod["spec"]
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""
