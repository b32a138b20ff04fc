"""Requests of the controller that leads: none is made any more once it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dra.claims.claims import field_manager
from dra.common.resources import (
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.gpu.names import prepare_retry
from dra.kube.client import KubeApi, PatchContent
from dra.kube.errors import ConflictError, InvalidError, ObjectNotFoundError
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod

_NOMINATED = "/status/nominatedNodeName"
_RESERVED = "/spec/reservations"


class NotLeadingError(Exception):
    """Nothing is written any more: another controller may lead."""


class RefusedError(Exception):
    """The API server refuses a write, and will refuse it again; says why, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests for one driver, as long as this process ``leads``; ``now`` gives the time of day.

    All raise KubeError when the server refuses, and NotLeadingError. Claims are written by
    ``controller.write.claims`` alone.
    """

    kube: KubeApi
    driver: str
    leads: Callable[[], bool]
    now: Callable[[], datetime]

    @property
    def manager(self) -> str:
        return field_manager(self.driver)

    @property
    def api(self) -> KubeApi:
        """For one request."""
        if not self.leads():
            raise NotLeadingError
        return self.kube

    def patch(
        self,
        resource: Resource,
        key: ObjectKey,
        body: Any,
        *,
        subresource: str = "",
        content: PatchContent = "merge",
    ) -> Obj:
        """Change the object of that namespace and name."""
        return self.api.patch(
            resource,
            key[1],
            body,
            namespace=key[0],
            subresource=subresource,
            content=content,
            field_manager=self.manager,
        )

    def take_steps(
        self, resource: Resource, key: ObjectKey, steps: list[Obj], *, subresource: str = ""
    ) -> Obj:
        """Change an object by a JSON patch.

        Raises:
            ConflictError: something is not as a step tests it.
        """
        try:
            return self.patch(resource, key, steps, subresource=subresource, content="json")
        except InvalidError as error:  # what a JSON patch is answered whose test fails
            name = "/".join(filter(None, key))
            raise ConflictError(f"{resource.kind} {name} has changed: {error.message}") from error

    # -- pods

    def lift_gate(self, pod: Pod, gate: str) -> Obj:
        """Remove a scheduling gate.

        Raises:
            ConflictError: the gates, or the pod, are no longer those that were seen.
        """
        path = f"/spec/schedulingGates/{pod.gates.index(gate)}"
        return self._change_pod(pod, is_still(f"{path}/name", gate), {"op": "remove", "path": path})

    def nominate(self, pod: Pod, node: str) -> Obj:
        """Say of a pod that room is to be made for it on ``node``.

        Raises:
            ConflictError: it is bound or nominated already, or the pod is another.
        """
        return self._change_pod(
            pod,
            is_still("/spec/nodeName", None),
            is_still(_NOMINATED, None),
            {"op": "add", "path": _NOMINATED, "value": node},
            subresource="status",
        )

    def take_back_nomination(self, pod: Pod, node: str) -> Obj:
        """Say no more that ``pod`` is nominated for ``node``.

        Raises:
            ConflictError: it is not, or the pod is another.
        """
        remove = {"op": "remove", "path": _NOMINATED}
        return self._change_pod(pod, is_still(_NOMINATED, node), remove, subresource="status")

    def name_claims(self, pod: Pod, names: Mapping[str, str]) -> Obj:
        """Say in a pod's status which claims were made for its entries; others stay as they are."""
        entries = [{"name": e, "resourceClaimName": names[e]} for e in sorted(names)]
        body = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": entries}}
        return self.patch(PODS, pod.key, body, subresource="status", content="strategic")

    def request_prepare(self, pod: Pod, mark: str) -> Obj:
        """Have kubelet ask at once for what a pod still lacks; ``mark`` says on what occasion.

        After a failed NodePrepareResources kubelet waits for 60 to 90 s (completeWork in its
        pod_workers.go, 1.36), but for a pod whose annotations change it asks at once
        (podsDifferSemantically in its config/config.go).
        """
        annotations = {prepare_retry(self.driver): mark}
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return self.patch(PODS, pod.key, body)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Obj:
        """Evict a pod by the Eviction API, or ask whether that may be.

        Raises:
            UnavailableError: a PodDisruptionBudget forbids it now (429), or no answer.
        """
        namespace, name = pod.key
        options: Obj = {"preconditions": {"uid": pod.uid}}
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {**options, **({"dryRun": ["All"]} if dry_run else {})},
        }
        return self.api.create(PODS, body, subresource="eviction", field_manager=self.manager)

    def end(self, pod: Pod, why: str) -> Obj:
        """Delete a pod, whatever its budgets, and say in a condition beforehand why.

        It ends in the time that it has for that (``terminationGracePeriodSeconds``).
        """
        said = self.set_condition(
            pod, "DisruptionTarget", status="True", reason="PreemptedForSlice", message=why
        )
        self.api.delete(PODS, pod.key[1], namespace=pod.key[0], uid=pod.uid)
        return said

    def set_condition(
        self, pod: Pod, condition: str, *, status: str, reason: str, message: str
    ) -> Obj:
        """Set a condition of a pod, and leave its others alone."""
        found = at(pod.obj, "status", "conditions")
        before: Obj = next((c for c in found if c["type"] == condition), {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        entry = {
            "type": condition,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or rfc3339(self.now()),
        }
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [entry]}}
        return self.patch(PODS, pod.key, body, subresource="status", content="strategic")

    def _change_pod(self, pod: Pod, *steps: Obj, subresource: str = "") -> Obj:
        same = is_still("/metadata/uid", pod.uid)
        return self.take_steps(PODS, pod.key, [same, *steps], subresource=subresource)

    # -- classes, templates, Nodes and MigNodes

    def apply(self, resource: Resource, body: Obj) -> Obj:
        """Create or update a generated DeviceClass or ResourceClaimTemplate."""
        return self.api.apply(resource, body, field_manager=self.manager)

    def remove(self, resource: Resource, key: ObjectKey, *, uid: str) -> None:
        """Delete what was generated; what is gone is fine. ``key``: namespace and name.

        Raises:
            ConflictError: there is another of its name.
        """
        with suppress(ObjectNotFoundError):
            self.api.delete(resource, key[1], namespace=key[0], uid=uid)

    def classes_in_templates(self) -> frozenset[str]:
        """Names of the DeviceClasses that ResourceClaimTemplates of any namespace name."""
        found = self.api.list(RESOURCE_CLAIM_TEMPLATES, keep=_only_classes).items
        return frozenset(name for each in found for name in each["names"])

    def apply_node_labels(self, node: str, labels: Mapping[str, str]) -> Obj:
        """Put labels on a Node, and take those off that were put there before and are not given.

        Raises:
            ConflictError: others own labels that have other values; its causes name them.
        """
        body = {"metadata": {"name": node, "labels": dict(labels)}}
        manager = f"{self.driver}/labels"
        return self.api.apply(NODES, body, field_manager=manager, force=False)

    def reserve(self, node: str, before: list[Obj], wanted: list[Obj]) -> Obj:
        """Replace what is reserved in a MigNode (``spec.reservations``).

        Raises:
            ConflictError: it is not ``before`` that is reserved there.
        """
        change: Obj = {"op": "add", "value": wanted} if wanted else {"op": "remove"}
        steps = [is_still(_RESERVED, before or None), {**change, "path": _RESERVED}]
        return self.take_steps(MIG_NODES, ("", node), steps)


def _only_classes(template: Obj) -> Obj:
    requests = at(template, "spec", "spec", "devices", "requests")
    exact = [at(each, "exactly", default={}) for each in requests]
    choices = [*exact, *(choice for each in requests for choice in at(each, "firstAvailable"))]
    return {"names": [name for c in choices if (name := at(c, "deviceClassName", default=""))]}


def is_still(path: str, value: object) -> Obj:
    """Step of a JSON patch that fails unless a field has this value; None: unless it is missing."""
    return {"op": "test", "path": path, "value": value}
