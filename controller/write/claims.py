"""Writer of the controller's changes to claims; no other module writes claims.

The finalizer is written before the allocation, by a request of its own, as a write of the status
changes no metadata. Writes that follow from a decision name the resourceVersion that the decision
was made on, so that they fail if the claim has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.write.requests import RefusedError, Requests
from dra.allocator.problem import Decision
from dra.claims.allocation import label_of, node_label, write_allocation
from dra.claims.claims import Claim
from dra.claims.reasons import SPACED
from dra.claims.stored import LARGEST, MOST_FINALIZERS
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.errors import InvalidError, ObjectNotFoundError
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod


class ClaimWriter:
    """Writes claims by ``requests``, whose errors are raised.

    ``labels_nodes``: claims get a label with the node of their allocation
    (``dra.claims.allocation``).
    """

    def __init__(
        self,
        requests: Requests,
        *,
        finalizer: str,
        labels_nodes: bool = True,
    ) -> None:
        self.requests = requests
        self._driver = requests.driver
        self._finalizer = finalizer
        self._labels_nodes = labels_nodes

    def add_finalizer(self, claim: Claim, *, node: str) -> Obj:
        """Put our finalizer on a claim that is to be allocated on ``node``.

        Raises:
            RefusedError: every patch of the claim is refused.
        """
        labels = {"labels": self._node_label(node)} if self._labels_nodes else {}
        return self._set_finalizers(claim, [*claim.finalizers, self._finalizer], **labels)

    def is_labelled(self, stored: Obj, *, node: str) -> bool:
        """True if a claim has the label with ``node``, or claims are to have no such label."""
        labels = at(stored, "metadata", "labels", default={})
        return not self._labels_nodes or self._node_label(node).items() <= labels.items()

    def label(self, stored: Obj, *, node: str) -> Obj:
        """Put the label with ``node`` on a claim unless it has it; returns the claim as stored."""
        labels, metadata = self._node_label(node), stored["metadata"]
        if self.is_labelled(stored, node=node):
            return stored
        body = {"metadata": {"uid": metadata["uid"], "labels": labels}}
        return self.requests.patch(RESOURCE_CLAIMS, (metadata["namespace"], metadata["name"]), body)

    def _node_label(self, node: str) -> dict[str, str]:
        return {node_label(self._driver): label_of(node)}

    def remove_finalizer(self, claim: Claim) -> Obj:
        return self._set_finalizers(claim, [f for f in claim.finalizers if f != self._finalizer])

    def allocate(
        self,
        claim: Claim,
        decision: Decision,
        *,
        config: Iterable[Mapping[str, Any]],
        pod: Pod,
        awaits_slices: bool = False,
    ) -> Obj:
        """Write the decision for a claim that has our finalizer, reserved for ``pod``.

        The reservation saves kube-scheduler a write, as it reserves a claim before it binds the pod
        unless that is done already. With ``awaits_slices`` kube-scheduler binds the pod once the
        claim's slices are made, and reserves the claim itself; whole GPUs and shares are there.

        Raises:
            RefusedError: a permission is missing.
        """
        requests = {c.name: c for request in claim.requests for c in request.choices}
        order = {name: n for n, name in enumerate(requests)}
        picks = sorted(decision.of(claim.ref), key=lambda p: order[p.request])
        devices = [
            replace(
                p.allocated(self._driver, decision.pool),
                tolerations=requests[p.request].tolerations,
            )
            for p in picks
        ]
        slices = {p.device for p in picks if p.placement is not None and p.share is None}
        status: Obj = {
            "allocation": write_allocation(
                devices,
                decision.node,
                timestamp=rfc3339(self.requests.now()),
                config=config,
                awaited=slices if awaits_slices else (),
            )
        }
        if not (awaits_slices and slices):
            consumer = {"resource": PODS.plural, "name": pod.key[1], "uid": pod.uid}
            status["reservedFor"] = [consumer]
        try:
            return self._set_status(claim, status)
        except InvalidError as error:
            if "resourceclaims/binding" not in error.message:
                raise
            raise RefusedError(
                "the API server refuses allocations: from Kubernetes 1.36 on the controller needs "
                "a ClusterRole with the verb patch on resourceclaims/binding, besides "
                f"resourceclaims/status, bound by a ClusterRoleBinding ({error.message})"
            ) from error

    def unreserve(self, claim: Claim) -> Obj:
        """Remove ``reservedFor`` from a claim; its allocation stays.

        From then on kube-scheduler has to reserve the claim before it binds a pod, which makes a
        deallocation that was decided before fail.
        """
        return self._set_status(claim, {"reservedFor": None})

    def deallocate(self, claim: Claim) -> Obj:
        """Remove the allocation of a claim that is not reserved."""
        return self._set_status(claim, {"allocation": None})

    def fence(self, claim: Claim, mark: str) -> Obj:
        """Change a claim in whatever state it is, so that earlier requests for it no longer fit.

        Raises:
            ObjectNotFoundError: the claim is gone; there may be another of its name.
        """
        annotations = {f"{self._driver}/fence": mark}
        body = {"metadata": {"uid": claim.ref.uid, "annotations": annotations}}
        try:
            return self.requests.patch(RESOURCE_CLAIMS, claim.ref.key, body)
        except InvalidError as error:
            causes = error.details.get("causes") or ()
            if any(cause.get("field") == "metadata.uid" for cause in causes):
                raise ObjectNotFoundError(
                    f"claim {claim.ref} is another: {error.message}"
                ) from error
            raise

    def _set_finalizers(self, claim: Claim, finalizers: list[str], **metadata: Obj) -> Obj:
        if len(claim.finalizers) > MOST_FINALIZERS:
            raise RefusedError(
                f"the claim has more than {MOST_FINALIZERS} finalizers, or takes more than "
                f"{LARGEST // 2**10} KiB, and is not touched: remove finalizers that nobody waits "
                "for, or labels, annotations and parameters"
            )
        try:
            return self._patch(claim, {"metadata": {**metadata, "finalizers": finalizers or None}})
        except InvalidError as error:
            if not (claim.config or claim.others_config) or "immutable" not in error.message:
                raise
            raise RefusedError(f"{SPACED} ({error.message})") from error

    def _set_status(self, claim: Claim, status: Obj) -> Obj:
        return self._patch(claim, {"status": status}, subresource="status")

    def _patch(self, claim: Claim, body: Obj, *, subresource: str = "") -> Obj:
        found = {"uid": claim.ref.uid, "resourceVersion": claim.resource_version}
        versioned = {**body, "metadata": found | body.get("metadata", {})}
        return self.requests.patch(
            RESOURCE_CLAIMS, claim.ref.key, versioned, subresource=subresource
        )
