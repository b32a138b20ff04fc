"""The Helm chart on a real API server, parts of it alone, and the credentials of its pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

from dra.common.resources import Obj, at
from dra.gpu.names import DEFAULT_DRIVER, class_name, finalizer
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.chart import NAMESPACE, find, render
from hack.cluster.controlplane import ControlPlane
from sim.processes import ClusterError, wait_for

PLUGIN = "mig-dra-driver-nvidia-mig-kubelet-plugin"
CONTROLLER = "mig-dra-driver-nvidia-mig-controller"
_FIRST = {"ServiceAccount", "CustomResourceDefinition"}
"""Kinds that others refer to; helm has the same order, in more steps."""
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "RuntimeClass": "runtimeclasses",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}


def path(obj: Obj) -> str:
    """Path of an object of the chart."""
    group = obj["apiVersion"]
    parts = ["/apis" if "/" in group else "/api", group]
    if namespace := obj["metadata"].get("namespace"):
        parts += ["namespaces", namespace]
    kind = obj["kind"]
    return "/".join([*parts, _PLURALS.get(kind, f"{kind.lower()}s"), obj["metadata"]["name"]])


def apply(api: Api, obj: Obj) -> Obj:
    """Applies one object as helm does, unknown fields refused; returns it as stored."""
    query = "fieldManager=helm&force=true&fieldValidation=Strict"
    return api.request(
        "PATCH", f"{path(obj)}?{query}", body=obj, content="application/apply-patch+yaml"
    )


class Installation:
    """Installation as ``helm install`` makes it: a namespace, and in it the rendered chart.

    Args:
        control_plane: where.
        values: for the chart.
        adapt: changes the rendered objects before they are applied.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        values: Obj | None = None,
        *,
        adapt: Callable[[list[Obj]], list[Obj]] = list,
    ) -> None:
        self._control_plane = control_plane
        self._values = values
        self._adapt = adapt
        self.api = control_plane.api
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def apply(self) -> list[Obj]:
        """Applies every object, unknown fields refused; returns them as stored."""
        rendered = self._adapt(render(self._values))
        objects = sorted(rendered, key=lambda each: each["kind"] not in _FIRST)
        return [apply(self.api, each) for each in objects]

    @contextlib.contextmanager
    def role(self, changed: Obj) -> Iterator[None]:
        """Another version of one of the chart's ClusterRoles, inside the block."""
        apply(self.api, changed)
        try:
            yield
        finally:
            role = find(render(self._values), "ClusterRole", changed["metadata"]["name"])
            apply(self.api, role)

    def pods(self, component: str) -> list[Obj]:
        """The pods that controllers made of the chart's workloads and the scheduler bound."""
        found = self.api.list(
            "Pod",
            namespace=NAMESPACE,
            labelSelector=f"app.kubernetes.io/component={component}",
        )
        return [each for each in found if each["spec"].get("nodeName")]

    def pod_on(self, node: str, component: str) -> Obj:
        """The pod of a component on a node, once it is there."""
        return wait_for(
            f"{component} on {node}",
            lambda: next((p for p in self.pods(component) if p["spec"]["nodeName"] == node), None),
        )

    def token(self, account: str, pod: Obj | None = None) -> str:
        """A token of a service account: as a pod mounts it, or bound to nothing."""
        spec: dict[str, Any] = {"expirationSeconds": 3600}
        if pod is not None:
            bound = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **bound}
        made = self.api.request(
            "POST",
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        return str(made["status"]["token"])

    def acting(self, account: str, pod: Obj | None = None) -> Api:
        """The API as a service account sees it."""
        plane = self._control_plane
        return Api(plane.server, self.token(account, pod), certificate=plane.certificate)

    def wait_until_guarded(self, plugin: Api) -> None:
        """Waits until the policies act; dry runs show it, so that nothing is made meanwhile."""
        policies = [e for e in render(self._values) if e["kind"] == "ValidatingAdmissionPolicy"]
        foreign = mignode("nobody")

        def refused() -> bool:
            try:
                plugin.request("POST", f"{collection('MigNode')}?dryRun=All", body=foreign)
            except ApiError as error:
                # 404 and 429 while the resource is not served yet.
                return error.status == HTTPStatus.FORBIDDEN and "may only write the MigNode" in str(
                    error
                )
            return False

        wait_for("admission policies", refused, timeout=60)
        for policy in policies:
            name = policy["metadata"]["name"]
            wait_for(f"type check of {name}", partial(self._checked, policy), timeout=60)

    def _checked(self, policy: Obj) -> bool:
        found = self.api.request("GET", path(policy))
        warnings = at(found, "status", "typeChecking", "expressionWarnings")
        if warnings:
            raise ClusterError(f"{path(policy)} does not fit the types it checks: {warnings}")
        return at(found, "status", "observedGeneration", default=None) is not None


def mignode(node: str, *, pool: str = "") -> Obj:
    """A MigNode as a plugin creates it."""
    return {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigNode",
        "metadata": {"name": node},
        "spec": {"driver": "mig.dra.dev", "pool": pool or node, "allocator": "controller"},
    }


FLAG = "--finalizer-at-creation"
"""For a controller where the policy is in force."""

_CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "asked"},
    "spec": {
        "devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": class_name("1g.10gb")}}]
        }
    },
}


@contextlib.contextmanager
def finalizers_at_creation(api: Api) -> Iterator[None]:
    """New claims have the finalizer inside the block."""
    policy = [each for each in render() if each["metadata"]["name"].endswith("-claim-finalizer")]
    for each in policy:
        apply(api, each)
    wait_for("policy", lambda: _finalizers(api) == [finalizer(DEFAULT_DRIVER)])
    yield
    for each in policy:
        api.request("DELETE", path(each))
    wait_for("end of the policy", lambda: _finalizers(api) == [])


def _finalizers(api: Api) -> list[str]:
    """Those of a new claim."""
    made = api.request("POST", f"{collection('ResourceClaim')}?dryRun=All", body=_CLAIM)
    return list(at(made, "metadata", "finalizers"))
