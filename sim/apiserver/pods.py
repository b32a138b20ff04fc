"""Subresources of a pod: its node, its eviction, the log of a container.

The log is asked of the kubelet of the pod's node, as the API server does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dra.common.resources import Obj, at
from sim.apiserver import deletion, errors
from sim.apiserver.requests import Target
from sim.apiserver.resources import NODES, STREAMS

if TYPE_CHECKING:
    from sim.apiserver.registry import Registry


_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def create(registry: Registry, target: Target, body: Any) -> Obj:
    """Answers a POST to a subresource (405 if it takes none)."""
    if not isinstance(body, dict):
        raise errors.bad_request("the body of the request is no object")
    if target.subresource == "binding":
        _bind(registry, target, body)
    elif target.subresource == "eviction":
        options = deletion.DeleteOptions.read(body.get("deleteOptions"), {})
        deletion.delete(registry, target, options)
    else:
        raise errors.method_not_allowed()
    return _SUCCESS


def refuse_stream(registry: Registry, target: Target) -> None:
    """Refuses, with the reason, what a program in a container would have to answer."""
    if target.subresource in STREAMS:
        registry.get(target)
        raise errors.bad_request(
            "no program runs in the containers of a simulated cluster: kubectl logs "
            f"-n {target.namespace} {target.name} shows what they were given"
        )


def _bind(registry: Registry, target: Target, body: Obj) -> None:
    """Gives a pod its node, once; a gated or deleted pod is refused (409)."""
    metadata = body.get("metadata") or {}
    node = at(body, "target", "name", default="")
    if metadata.get("name", "") != target.name:
        raise errors.bad_request("name in URL does not match name in Binding object")
    pod, name = registry.get(target).copy(), target.name
    have, spec = pod["metadata"], pod["spec"]
    for field in ("uid", "resourceVersion"):
        if metadata.get(field, have[field]) != have[field]:
            why = f"Precondition failed: {field} in precondition: {metadata[field]}"
            raise errors.conflict(target.resource, name, why)
    if obstacle := _obstacle(pod, name):
        binding = f'Operation cannot be fulfilled on pods/binding "{name}": {obstacle}'
        raise errors.ApiError(409, "Conflict", binding)
    spec["nodeName"] = node
    have["generation"] = have.get("generation", 0) + 1
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    conditions = [c for c in status.get("conditions", []) if c["type"] != "PodScheduled"]
    since = registry.env.timestamp()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    status["conditions"] = [*conditions, scheduled]
    registry.store.put(target.resource.family, pod)


def _obstacle(pod: Obj, name: str) -> str:
    spec = pod["spec"]
    if "deletionTimestamp" in pod["metadata"]:
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Path to ask of a kubelet, and the address at which it listens."""

    host: str
    port: int
    path: str


def upstream(registry: Registry, target: Target, container: str) -> Upstream | None:
    """Place of the log of a pod's container; None when the pod has no node yet.

    Raises:
        ApiError: there is no such pod or container, or it is not said which, or its node serves no
            logs.
    """
    pod = registry.get(target).copy()
    spec = pod["spec"]
    names = [c["name"] for kind in ("initContainers", "containers") for c in spec.get(kind, ())]
    if not container and len(spec["containers"]) > 1:
        choice = " ".join(names)
        raise errors.bad_request(
            f"a container name must be specified for pod {target.name}, choose one of: [{choice}]"
        )
    container = container or spec["containers"][0]["name"]
    if container not in names:
        raise errors.bad_request(f"container {container} is not valid for pod {target.name}")
    if not spec.get("nodeName"):
        return None
    node = registry.get(Target(NODES, "", spec["nodeName"], "")).copy().get("status", {})
    port = at(node, "daemonEndpoints", "kubeletEndpoint", "Port", default=0)
    host = next((a["address"] for a in node.get("addresses", ()) if a["type"] == "InternalIP"), "")
    if not port or not host:
        raise errors.ApiError(
            500, "InternalError", f"node {spec['nodeName']} has no kubeletEndpoint in its status"
        )
    parts = (target.namespace, target.name, container)
    return Upstream(host, port, "/containerLogs/" + "/".join(quote(p, safe="") for p in parts))


async def fetch(upstream: Upstream) -> bytes:
    """The log.

    Raises:
        ApiError: the kubelet does not answer, or refuses.
    """
    url = f"http://{upstream.host}:{upstream.port}{upstream.path}"
    try:
        reader, writer = await asyncio.open_connection(upstream.host, upstream.port)
        writer.write(f"GET {upstream.path} HTTP/1.0\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read()
        writer.close()
    except OSError as error:
        raise errors.ApiError(500, "InternalError", f"Get {url!r}: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"%d" % HTTPStatus.OK]:
        raise errors.bad_request(body.decode(errors="replace").strip())
    return body
