"""The log of a container: asked of the kubelet of the pod's node, as the API server does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from dra.common.resources import at
from sim.apiserver.refusals import errors
from sim.apiserver.schema.resources import NODES
from sim.apiserver.verbs.incoming import Target

if TYPE_CHECKING:
    from sim.apiserver.verbs.registry import Registry


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
