"""Requests of the controller; they are made only while it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from dra.allocator.explain.answers import AnswerReason
from dra.claims.claims import field_manager
from dra.claims.conditions import SENT
from dra.common.resources import (
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
from dra.kube.http import whole
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod

_NOMINATED = "/status/nominatedNodeName"


class NotLeadingError(Exception):
    """The controller leads no more and writes nothing: another controller may lead."""


class RefusedError(Exception):
    """The API server refuses a write for good; the text has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests for one driver. Claims are written by ``controller.write.claims`` alone.

    ``leads``: returns True while this process leads. ``now``: gives the time of day.

    Each request raises KubeError if the API server refuses it, and NotLeadingError if this process
    does not lead.
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
        """The client, to be asked for anew before each request.

        Raises:
            NotLeadingError: this process does not lead.
        """
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
        """Patch the object ``key`` (namespace and name); returns it as stored."""
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
            ConflictError: a step that tests a value has failed.
        """
        try:
            return self.patch(resource, key, steps, subresource=subresource, content="json")
        except InvalidError as error:  # the answer if a test of the JSON patch fails
            name = "/".join(filter(None, key))
            raise ConflictError(f"{resource.kind} {name} has changed: {error.message}") from error

    # -- pods

    def lift_gate(self, pod: Pod, gate: str) -> Obj:
        """Remove a scheduling gate.

        Raises:
            ConflictError: the pod's gates have changed, or there is another pod of the name.
        """
        path = f"/spec/schedulingGates/{pod.gates.index(gate)}"
        return self._change_pod(pod, is_still(f"{path}/name", gate), {"op": "remove", "path": path})

    def send_to(self, pod: Pod, node: str, *, gate: str) -> Iterator[Obj]:
        """Nominate a node for a pod, if one is given, and say so; then lift the gate.

        Raises:
            ConflictError: the pod's gates have changed, or there is another pod of the name.
        """
        sent = f"{self.driver}/{SENT}"
        reason, more = (
            ("Nominated", {"nominatedNodeName": node}) if node else (AnswerReason.NO_ROOM, {})
        )
        yield self.set_condition(pod, sent, status="True", reason=reason, message=node, more=more)
        yield self.lift_gate(pod, gate)

    def nominate(self, pod: Pod, node: str) -> Obj:
        """Set the pod's ``nominatedNodeName``.

        Raises:
            ConflictError: it is bound or nominated already, or there is another pod of the name.
        """
        return self._change_pod(
            pod,
            is_still("/spec/nodeName", None),
            is_still(_NOMINATED, None),
            {"op": "add", "path": _NOMINATED, "value": node},
            subresource="status",
        )

    def take_back_nomination(self, pod: Pod, node: str) -> Obj:
        """Remove the pod's ``nominatedNodeName``, which has to be ``node``.

        Raises:
            ConflictError: it has another value, or there is another pod of the name.
        """
        remove = {"op": "remove", "path": _NOMINATED}
        return self._change_pod(pod, is_still(_NOMINATED, node), remove, subresource="status")

    def name_claims(self, pod: Pod, names: Mapping[str, str]) -> Obj:
        """Write the names of claims, by entry, into a pod's status; other entries stay as is."""
        entries = [{"name": e, "resourceClaimName": names[e]} for e in sorted(names)]
        body = {"metadata": {"uid": pod.uid}, "status": {"resourceClaimStatuses": entries}}
        return self.patch(PODS, pod.key, body, subresource="status", content="strategic")

    def request_prepare(self, pod: Pod, mark: str) -> Obj:
        """Have kubelet ask at once for a pod's claims that it has not prepared.

        After a failed NodePrepareResources kubelet waits for 60 to 90 s (completeWork in its
        pod_workers.go, 1.36), but asks at once if the pod's annotations change
        (podsDifferSemantically in its config/config.go). ``mark``: the annotation's new value.
        """
        annotations = {prepare_retry(self.driver): mark}
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return self.patch(PODS, pod.key, body)

    def evict(self, pod: Pod, *, dry_run: bool = False) -> Obj:
        """Evict a pod by the Eviction API; ``dry_run``: only ask if that is allowed.

        Raises:
            UnavailableError: a PodDisruptionBudget forbids it now (429), or there is no answer.
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
        """Delete a pod despite its PodDisruptionBudgets, after a condition that says ``why``.

        The pod has its ``terminationGracePeriodSeconds`` to end.
        """
        said = self.set_condition(
            pod, "DisruptionTarget", status="True", reason="PreemptedForSlice", message=why
        )
        self.api.delete(PODS, pod.key[1], namespace=pod.key[0], uid=pod.uid)
        return said

    def set_condition(  # noqa: PLR0913 - fields of the condition
        self,
        pod: Pod,
        condition: str,
        *,
        status: str,
        reason: str,
        message: str,
        more: Obj | None = None,
    ) -> Obj:
        """Set a condition of a pod, and leave its others alone. ``more``: of its status."""
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
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [entry], **(more or {})}}
        return self.patch(PODS, pod.key, body, subresource="status", content="strategic")

    def _change_pod(self, pod: Pod, *steps: Obj, subresource: str = "") -> Obj:
        same = is_still("/metadata/uid", pod.uid)
        return self.take_steps(PODS, pod.key, [same, *steps], subresource=subresource)

    # -- classes, templates, Nodes and MigNodes

    def apply(self, resource: Resource, body: Obj) -> Obj:
        """Create or update a generated DeviceClass or ResourceClaimTemplate."""
        return self.api.apply(resource, body, field_manager=self.manager)

    def remove(self, resource: Resource, key: ObjectKey, *, uid: str) -> None:
        """Delete a generated object, unless it is gone. ``key``: namespace and name.

        Raises:
            ConflictError: the object of that name has another UID.
        """
        with suppress(ObjectNotFoundError):
            self.api.delete(resource, key[1], namespace=key[0], uid=uid)

    def classes_in_templates(self) -> frozenset[str]:
        """Names of the DeviceClasses that ResourceClaimTemplates in any namespace ask for."""
        found = self.api.list(RESOURCE_CLAIM_TEMPLATES, keep=_only_classes).items
        return frozenset(name for each in found for name in each["names"])

    def apply_node_labels(self, node: str, labels: Mapping[str, str]) -> Obj:
        """Set ``labels`` on a Node, and remove those that this method set before.

        Raises:
            ConflictError: others own some of the labels, with other values; its causes name these.
        """
        body = {"metadata": {"name": node, "labels": dict(labels)}}
        manager = f"{self.driver}/labels"
        return self.api.apply(NODES, body, field_manager=manager, force=False)


def _only_classes(raw: msgspec.Raw) -> Obj:
    requests = at(whole(raw), "spec", "spec", "devices", "requests")
    exact = [at(each, "exactly", default={}) for each in requests]
    choices = [*exact, *(choice for each in requests for choice in at(each, "firstAvailable"))]
    return {"names": [name for c in choices if (name := at(c, "deviceClassName", default=""))]}


def is_still(path: str, value: object) -> Obj:
    """Step of a JSON patch that fails unless a field is ``value``; None: unless it is missing."""
    return {"op": "test", "path": path, "value": value}
