"""The Helm chart on a real API server, parts of it alone, and the credentials of its pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from dra.common.resources import Obj, at
from dra.gpu.names import DEFAULT_DRIVER, class_name, finalizer
from hack.cluster.api import Api, collection
from hack.cluster.chart import NAMESPACE, render
from hack.cluster.controlplane import ControlPlane
from sim.processes import wait_for

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
        self.control_plane = control_plane
        self.values = values
        self._adapt = adapt
        self.api = control_plane.api
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def apply(self) -> list[Obj]:
        """Applies every object, unknown fields refused; returns them as stored."""
        rendered = self._adapt(render(self.values))
        objects = sorted(rendered, key=lambda each: each["kind"] not in _FIRST)
        return [apply(self.api, each) for each in objects]

    def pods(self, component: str) -> list[Obj]:
        """The pods that controllers made of the chart's workloads and the scheduler bound."""
        found = self.api.list(
            "Pod",
            namespace=NAMESPACE,
            labelSelector=f"app.kubernetes.io/component={component}",
        )
        return [each for each in found if each["spec"].get("nodeName")]


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
