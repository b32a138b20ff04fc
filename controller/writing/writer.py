"""Writer of the controller's changes to objects of others; no other module makes any.

The finalizer goes first, by a patch of the object: a status update carries no metadata. Every
write to a claim that was decided names the resourceVersion that the decision was made on, so that
whoever was faster wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from controller.cluster.trimming.trimming import MOST_FINALIZERS
from controller.writing.handover import Unanswered
from dra.allocator.problem import Pick
from dra.claims.allocation import write_allocation
from dra.claims.claims import Claim, field_manager
from dra.claims.node_label import label_of, node_label
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.gpu.names import prepare_retry
from dra.kube.client.patch import PatchApi
from dra.kube.errors import ConflictError, InvalidError, KubeError, ObjectNotFoundError
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

_NOMINATED = "/status/nominatedNodeName"
_RESERVED = "/spec/reservations"


class WriteApi(PatchApi, Protocol):
    """The requests that a writer makes; KubeApi has them."""

    def apply(
        self,
        resource: Resource,
        body: Obj,
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Obj:
        """Server-side apply."""

    def create(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        """Create an object, or a subresource of the object that ``body`` names."""

    def delete(self, resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> None:
        """Delete an object; another than ``uid``, if one is given, is a ConflictError."""


class NotLeadingError(Exception):
    """Nothing is written any more: another controller may lead."""


class RefusedError(Exception):
    """The API server refuses a write, and will refuse it again; says why, and the remedy."""


class Writer:
    """Writes for one driver, as long as it ``leads``.

    Every method raises KubeError when the server refuses, and NotLeadingError. ``unanswered`` are
    its allocations that may still be made. With ``labels_nodes`` claims name in a label the node
    that they are allocated to (``dra.claims.node_label``). ``evicts``: it may evict pods.
    """

    def __init__(  # noqa: PLR0913 - what it writes, and when
        self,
        api: WriteApi,
        *,
        driver: str,
        finalizer: str,
        now: Callable[[], datetime],
        leads: Callable[[], bool],
        labels_nodes: bool = True,
        evicts: bool = False,
    ) -> None:
        self._api = api
        self._driver = driver
        self._finalizer = finalizer
        self._manager = field_manager(driver)
        self._now = now
        self._leads = leads
        self._labels_nodes = labels_nodes
        self.evicts = evicts
        self.unanswered = Unanswered()

    def add_finalizer(self, claim: Claim, *, node: str) -> Obj:
        """Put our finalizer on a claim that is to be allocated on ``node``.

        Raises:
            RefusedError: no patch will do.
        """
        labels = {"labels": self._node_label(node)} if self._labels_nodes else {}
        return self._set_finalizers(claim, [*claim.finalizers, self._finalizer], **labels)

    def is_labelled(self, stored: Obj, *, node: str) -> bool:
        """True if a claim names the node in its label, or no claim is to have one."""
        labels = at(stored, "metadata", "labels", default={})
        return not self._labels_nodes or self._node_label(node).items() <= labels.items()

    def label(self, stored: Obj, *, node: str) -> Obj:
        """The claim as stored, with the label of the node that it is allocated to."""
        labels, metadata = self._node_label(node), stored["metadata"]
        if self.is_labelled(stored, node=node):
            return stored
        self._check()
        return self._api.patch(
            RESOURCE_CLAIMS,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"], "labels": labels}},
            namespace=metadata["namespace"],
            field_manager=self._manager,
        )

    def _node_label(self, node: str) -> dict[str, str]:
        return {node_label(self._driver): label_of(node)}

    def remove_finalizer(self, claim: Claim) -> Obj:
        """Take our finalizer off a claim, which ends it when it is being deleted."""
        return self._set_finalizers(claim, [f for f in claim.finalizers if f != self._finalizer])

    def allocate(  # noqa: PLR0913 - what an allocation holds
        self,
        claim: Claim,
        picks: Iterable[Pick],
        *,
        node: str,
        pool: str,
        config: Iterable[Mapping[str, Any]],
        pod: Pod,
    ) -> Obj:
        """Write an allocation, reserved for ``pod``; the claim must have our finalizer.

        The scheduler reserves what is not reserved yet before it binds a pod, with a write of its
        own; what it finds reserved it leaves alone.

        Raises:
            RefusedError: a permission is missing.
        """
        requests = {c.name: c for request in claim.requests for c in request.choices}
        order = {name: n for n, name in enumerate(requests)}
        devices = [
            replace(p.allocated(self._driver, pool), tolerations=requests[p.request].tolerations)
            for p in sorted(picks, key=lambda p: order[p.request])
        ]
        allocation = write_allocation(devices, node, timestamp=rfc3339(self._now()), config=config)
        consumer = {"resource": PODS.plural, "name": pod.key[1], "uid": pod.uid}
        try:
            return self._allocate(claim, {"allocation": allocation, "reservedFor": [consumer]})
        except InvalidError as error:
            if "resourceclaims/binding" not in error.message:
                raise
            raise RefusedError(
                "the API server refuses allocations: from Kubernetes 1.36 on the controller needs "
                "a ClusterRole with the verb patch on resourceclaims/binding, besides "
                f"resourceclaims/status, bound by a ClusterRoleBinding ({error.message})"
            ) from error

    def unreserve(self, claim: Claim) -> Obj:
        """Take back that an allocation is reserved; it stays.

        From then on kube-scheduler reserves the claim itself before it binds a pod, and what was
        decided before that no longer fits.
        """
        return self._set_status(claim, {"reservedFor": None})

    def deallocate(self, claim: Claim) -> Obj:
        """Clear an allocation that nobody has reserved."""
        return self._set_status(claim, {"allocation": None})

    def fence(self, claim: Claim, mark: str) -> Obj:
        """Change a claim in whatever state it is, so that no write fits that was made before.

        Raises:
            ObjectNotFoundError: the claim is gone; there may be another of its name.
        """
        self._check()
        annotations = {f"{self._driver}/fence": mark}
        try:
            return self._api.patch(
                RESOURCE_CLAIMS,
                claim.ref.name,
                {"metadata": {"uid": claim.ref.uid, "annotations": annotations}},
                namespace=claim.ref.namespace,
                field_manager=self._manager,
            )
        except InvalidError as error:
            causes = error.details.get("causes") or ()
            if any(cause.get("field") == "metadata.uid" for cause in causes):
                raise ObjectNotFoundError(
                    f"claim {claim.ref} is another: {error.message}"
                ) from error
            raise

    def lift_gate(self, pod: Pod, gate: str) -> Obj:
        """Remove a scheduling gate.

        Raises:
            ConflictError: the gates, or the pod, are no longer those that were seen.
        """
        self._check()
        index = pod.gates.index(gate)
        path = f"/spec/schedulingGates/{index}"
        steps = [_is(f"{path}/name", gate), {"op": "remove", "path": path}]
        return self._patch_pod(pod, steps)

    def nominate(self, pod: Pod, node: str) -> Obj:
        """Say of a pod that room is to be made for it on ``node``.

        Raises:
            ConflictError: it is bound or nominated already, or the pod is another.
        """
        self._check()
        steps = [
            _is("/spec/nodeName", None),
            _is(_NOMINATED, None),
            {"op": "add", "path": _NOMINATED, "value": node},
        ]
        return self._patch_pod(pod, steps, subresource="status")

    def take_back_nomination(self, pod: Pod, node: str) -> Obj:
        """Say no more that ``pod`` is nominated for ``node``.

        Raises:
            ConflictError: it is not, or the pod is another.
        """
        self._check()
        steps = [_is(_NOMINATED, node), {"op": "remove", "path": _NOMINATED}]
        return self._patch_pod(pod, steps, subresource="status")

    def request_prepare(self, pod: Pod, mark: str) -> Obj:
        """Have kubelet ask at once for what a pod still lacks; ``mark`` says on what occasion.

        After a failed NodePrepareResources kubelet waits for 60 to 90 s (completeWork in its
        pod_workers.go, 1.36), but for a pod whose annotations change it asks at once
        (podsDifferSemantically in its config/config.go).
        """
        self._check()
        annotations = {prepare_retry(self._driver): mark}
        return self._api.patch(
            PODS,
            pod.key[1],
            {"metadata": {"uid": pod.uid, "annotations": annotations}},
            namespace=pod.key[0],
            field_manager=self._manager,
        )

    def reserve(self, node: str, before: list[Obj], wanted: list[Obj]) -> Obj:
        """Replace what is reserved in a MigNode (``spec.reservations``).

        Raises:
            ConflictError: it is not ``before`` that is reserved there.
        """
        self._check()
        steps: list[Obj] = [{"op": "test", "path": _RESERVED, "value": before or None}]
        if wanted:
            steps.append({"op": "add", "path": _RESERVED, "value": wanted})
        else:
            steps.append({"op": "remove", "path": _RESERVED})
        try:
            return self._api.patch(
                MIG_NODES, node, steps, content="json", field_manager=self._manager
            )
        except InvalidError as error:
            raise ConflictError(f"MigNode {node} has changed: {error.message}") from error

    def evict(self, pod: Pod) -> Obj:
        """Evict a pod by the Eviction API.

        Raises:
            UnavailableError: a PodDisruptionBudget forbids it now (429), or no answer.
        """
        self._check()
        namespace, name = pod.key
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        return self._api.create(PODS, body, subresource="eviction", field_manager=self._manager)

    def set_condition(
        self, pod: Pod, condition: str, *, status: str, reason: str, message: str
    ) -> Obj:
        """Set a condition of a pod, and leave its others alone."""
        self._check()
        found = (pod.obj.get("status") or {}).get("conditions") or ()
        before: Obj = next((c for c in found if c["type"] == condition), {})
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        entry = {
            "type": condition,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or rfc3339(self._now()),
        }
        return self._api.patch(
            PODS,
            pod.key[1],
            {"metadata": {"uid": pod.uid}, "status": {"conditions": [entry]}},
            namespace=pod.key[0],
            subresource="status",
            content="strategic",
            field_manager=self._manager,
        )

    def apply_class(self, body: Obj) -> Obj:
        """Create or update a generated DeviceClass."""
        self._check()
        return self._api.apply(DEVICE_CLASSES, body, field_manager=self._manager)

    def apply_template(self, body: Obj) -> Obj:
        """Create a generated ResourceClaimTemplate; one that is there stays as it is."""
        self._check()
        return self._api.apply(RESOURCE_CLAIM_TEMPLATES, body, field_manager=self._manager)

    def remove_template(self, key: ObjectKey, *, uid: str) -> None:
        """Delete a generated ResourceClaimTemplate; one that is gone is fine.

        Raises:
            ConflictError: there is another of its name.
        """
        self._check()
        try:
            self._api.delete(RESOURCE_CLAIM_TEMPLATES, key[1], namespace=key[0], uid=uid)
        except ObjectNotFoundError:
            return

    def apply_node_labels(self, node: str, labels: Mapping[str, str]) -> Obj:
        """Put labels on a Node, and take those off that were put there before and are not given.

        Raises:
            ConflictError: others own labels that have other values; its causes name them.
        """
        self._check()
        body = {"metadata": {"name": node, "labels": dict(labels)}}
        return self._api.apply(NODES, body, field_manager=f"{self._driver}/labels", force=False)

    def _check(self) -> None:
        if not self._leads():
            raise NotLeadingError

    def _patch_pod(self, pod: Pod, steps: list[Obj], *, subresource: str = "") -> Obj:
        try:
            return self._api.patch(
                PODS,
                pod.key[1],
                [_is("/metadata/uid", pod.uid), *steps],
                namespace=pod.key[0],
                subresource=subresource,
                content="json",
                field_manager=self._manager,
            )
        except InvalidError as error:  # what a JSON patch is answered whose test fails
            raise ConflictError(f"pod {pod} has changed: {error.message}") from error

    def _set_finalizers(self, claim: Claim, finalizers: list[str], **metadata: Obj) -> Obj:
        if len(claim.finalizers) > MOST_FINALIZERS:
            raise RefusedError(
                f"the claim has more than {MOST_FINALIZERS} finalizers, and is not touched: remove "
                "those that nobody waits for"
            )
        try:
            return self._patch(claim, {"metadata": {**metadata, "finalizers": finalizers or None}})
        except InvalidError as error:
            if not (claim.config or claim.others_config) or "immutable" not in error.message:
                raise
            raise RefusedError(
                "the API server takes every change of this claim for one of its spec: the opaque "
                "parameters in spec.devices.config were stored with white space between their "
                "fields, which it leaves out when it compares; create the claim anew (or its "
                "template, and the pod) with parameters as compact JSON, which kubectl sends "
                f"({error.message})"
            ) from error

    def _allocate(self, claim: Claim, status: Obj) -> Obj:
        try:
            stored = self._set_status(claim, status)
        except NotLeadingError:  # nothing was sent
            raise
        except Exception as error:
            if not (isinstance(error, KubeError) and error.is_final):
                self.unanswered.add(claim)
            raise
        self.unanswered.forget(claim.ref.uid)
        return stored

    def _set_status(self, claim: Claim, status: Obj) -> Obj:
        return self._patch(claim, {"status": status}, subresource="status")

    def _patch(self, claim: Claim, body: Obj, *, subresource: str = "") -> Obj:
        self._check()
        versioned = {
            **body,
            "metadata": {
                "uid": claim.ref.uid,
                "resourceVersion": claim.resource_version,
                **body.get("metadata", {}),
            },
        }
        return self._api.patch(
            RESOURCE_CLAIMS,
            claim.ref.name,
            versioned,
            namespace=claim.ref.namespace,
            subresource=subresource,
            field_manager=self._manager,
        )


def _is(path: str, value: str | None) -> Obj:
    """Step of a JSON patch that fails unless a field has this value; None: unless it is missing."""
    return {"op": "test", "path": path, "value": value}
