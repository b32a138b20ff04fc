"""What the tests put on the cluster, taken away again after each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sim.processes import wait_for
from tests.cluster.harness.daemons import DRIVER
from tests.cluster.harness.pods import pod as pod_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dra.common.resources import Obj
    from hack.cluster.api import Api


SLEEPING = {"main": ["sleep", "1000000"]}
"""The container of a pod that stays."""


class Workload:
    """Creates objects in namespace default and remembers them.

    Args:
        api: as the administrator.
        tails: logs to show when a wait is in vain.
    """

    def __init__(self, api: Api, *, tails: Callable[[], str]) -> None:
        self._api = api
        self._tails = tails
        self._created: list[tuple[str, str]] = []

    def create(self, body: Obj) -> Obj:
        """Creates an object that `clear` will delete."""
        made = self._api.create(body)
        self._created.append((made["kind"], made["metadata"]["name"]))
        return made

    def template(self, name: str, *, device_class: str, **exactly: Any) -> dict[str, str]:
        """Makes a claim template with one request `slice`; returns a pod's reference to it."""
        self._make("ResourceClaimTemplate", name, {"spec": _claim_spec(device_class, exactly)})
        return {"resourceClaimTemplateName": name}

    def claim(self, name: str, *, device_class: str, **exactly: Any) -> dict[str, str]:
        """Makes a stand-alone claim with one request `slice`; returns a pod's reference to it."""
        self._make("ResourceClaim", name, _claim_spec(device_class, exactly))
        return {"resourceClaimName": name}

    def claim_of(self, pod: str) -> Obj | None:
        """The first claim made from a template for a pod."""
        statuses = self._api.get("Pod", pod).get("status", {}).get("resourceClaimStatuses", [])
        return (
            self._api.find("ResourceClaim", statuses[0]["resourceClaimName"]) if statuses else None
        )

    def run(self, *names: str, claims: Mapping[str, dict[str, str]], **where: Any) -> None:
        """Creates pods that stay, each when the one before it runs."""
        for name in names:
            self.create(pod_body(name, SLEEPING, claims=claims, **where))
            self.wait_for_phase(name, "Running")

    def wait_for_phase(self, pod: str, phase: str, *, timeout: float = 60.0) -> Obj:
        """The pod, once it is in that phase."""

        def reached() -> Obj | None:
            seen = self._api.get("Pod", pod)
            return seen if seen["status"].get("phase") == phase else None

        return wait_for(f"{phase} pod {pod}", reached, timeout=timeout, context=self.describe)

    def wait_for_node(self, pod: str, *, timeout: float = 60.0) -> str:
        """The node that a pod is bound to, once it is."""
        return wait_for(
            f"node of pod {pod}",
            lambda: str(self._api.get("Pod", pod)["spec"].get("nodeName", "")),
            timeout=timeout,
            context=self.describe,
        )

    def wait_for_allocation(self, pod: str, *, timeout: float = 30.0) -> Obj:
        """The claim of a pod, once it is allocated."""

        def allocated() -> Obj | None:
            claim = self.claim_of(pod)
            return claim if claim and node_of(claim) else None

        return wait_for(f"allocation for {pod}", allocated, timeout=timeout, context=self.describe)

    def wait_for_ending(self, claim: Obj) -> None:
        """Until a claim is reserved for nobody and on its way out."""

        def ending() -> bool:
            found = self._api.get("ResourceClaim", claim["metadata"]["name"])
            reserved = found["status"].get("reservedFor")
            return "deletionTimestamp" in found["metadata"] and not reserved

        wait_for("wish to delete the claim", ending, context=self.describe)

    def wait_for_end(self, claim: Obj, *, timeout: float) -> None:
        """Until a claim is gone."""
        name = claim["metadata"]["name"]
        wait_for(
            f"end of claim {name}",
            partial(self._gone, "ResourceClaim", name),
            timeout=timeout,
            context=self.describe,
        )

    def container(self, pod: str) -> tuple[str, int]:
        """The id of a pod's only container, and how often it was restarted."""
        (status,) = self._api.get("Pod", pod)["status"]["containerStatuses"]
        return str(status["containerID"]).removeprefix("containerd://"), int(status["restartCount"])

    def clear(self) -> None:
        """Deletes everything created and waits until it is gone, claims of templates included."""
        for kind, name in reversed(self._created):
            self._api.delete(kind, name, grace=_grace(self._api, kind, name))
        for kind, name in self._created:
            wait_for(
                f"deletion of {kind} {name}",
                partial(self._gone, kind, name),
                timeout=60,
                context=self.describe,
            )
        self._created.clear()
        wait_for(
            "deletion of all claims",
            lambda: not self._api.list("ResourceClaim"),
            timeout=30,
            context=self.describe,
        )

    def _gone(self, kind: str, name: str) -> bool:
        return self._api.find(kind, name) is None

    def describe(self) -> str:
        """Events of the namespace and the ends of the daemons' logs."""
        events = [
            f"{event['involvedObject']['kind']}/{event['involvedObject']['name']} "
            f"{event['reason']}: {event['message']}"
            for event in self._api.list("Event")
        ]
        return "\n".join(["--- events", *events, self._tails()])

    def _make(self, kind: str, name: str, spec: Obj) -> None:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
        self.create({**body, "spec": spec})


def node_of(claim: Obj) -> str:
    """The node that a claim is allocated to by us, or an empty string."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", [])
    if not results or results[0]["driver"] != DRIVER:
        return ""
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    (name,) = term["matchFields"][0]["values"]
    return str(name)


def _claim_spec(device_class: str, exactly: dict[str, Any]) -> Obj:
    request = {"name": "slice", "exactly": {"deviceClassName": device_class, **exactly}}
    return {"devices": {"requests": [request]}}


def _grace(api: Api, kind: str, name: str) -> int | None:
    """A pod on a node without kubelet goes only by force."""
    if kind != "Pod":
        return None
    found = api.find("Pod", name) or {"spec": {}}
    node = found["spec"].get("nodeName", "")
    return 0 if node.startswith("fake") else None
