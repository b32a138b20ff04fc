"""The accounts of an installed chart: their tokens, what they may do, and when they are guarded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

from dra.common.resources import Obj, at
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.chart import NAMESPACE, find, render
from hack.cluster.installation import Installation, apply, path
from sim.processes import ClusterError, wait_for

PLUGIN = "mig-dra-driver-nvidia-mig-kubelet-plugin"
CONTROLLER = "mig-dra-driver-nvidia-mig-controller"


@contextlib.contextmanager
def changed_role(installation: Installation, changed: Obj) -> Iterator[None]:
    """Another version of one of the chart's ClusterRoles, inside the block."""
    apply(installation.api, changed)
    try:
        yield
    finally:
        role = find(render(installation.values), "ClusterRole", changed["metadata"]["name"])
        apply(installation.api, role)


def pod_on(installation: Installation, node: str, component: str) -> Obj:
    """The pod of a component on a node, once it is there."""
    return wait_for(
        f"{component} on {node}",
        lambda: next(
            (p for p in installation.pods(component) if p["spec"]["nodeName"] == node), None
        ),
    )


def token(
    installation: Installation, account: str, pod: Obj | None = None, *, namespace: str = NAMESPACE
) -> str:
    """A token of a service account: as a pod mounts it, or bound to nothing."""
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if pod is not None:
        bound = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **bound}
    made = installation.api.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
        body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
    )
    return str(made["status"]["token"])


def acting(installation: Installation, account: str, pod: Obj | None = None) -> Api:
    """The API as a service account sees it."""
    plane = installation.control_plane
    return Api(plane.server, token(installation, account, pod), certificate=plane.certificate)


def wait_until_guarded(installation: Installation, plugin: Api) -> None:
    """Waits until the policies act; dry runs show it, so that nothing is made meanwhile."""
    policies = [e for e in render(installation.values) if e["kind"] == "ValidatingAdmissionPolicy"]
    foreign = mignode("nobody")

    def refused() -> bool:
        try:
            plugin.request("POST", f"{collection('MigNode')}?dryRun=All", body=foreign)
        except ApiError as error:
            # 404 and 429 while the resource is not served yet.
            return error.status == HTTPStatus.FORBIDDEN and "may only write" in str(error)
        return False

    wait_for("admission policies", refused, timeout=60)
    for policy in policies:
        name = policy["metadata"]["name"]
        wait_for(f"type check of {name}", partial(_checked, installation, policy), timeout=60)


def _checked(installation: Installation, policy: Obj) -> bool:
    found = installation.api.request("GET", path(policy))
    warnings = at(found, "status", "typeChecking", "expressionWarnings")
    if warnings:
        raise ClusterError(f"{path(policy)} does not fit the types it checks: {warnings}")
    return at(found, "status", "observedGeneration", default=None) is not None


def node_owner(api: Api, node: str) -> Obj:
    """The owner reference to a Node."""
    uid = api.get("Node", node)["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}


def mignode(node: str, *, pool: str = "", owner: Obj | None = None) -> Obj:
    """A MigNode as a plugin creates it; without ``owner`` only to be tried."""
    unknown = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": "unknown"}
    return {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigNode",
        "metadata": {"name": node, "ownerReferences": [owner or unknown]},
        "spec": {"driver": "mig.dra.dev", "pool": pool or node, "allocator": "controller"},
    }
