"""Writer of the controller's changes to claims; no other module makes any.

The finalizer goes first, by a patch of the object: a status update carries no metadata. Every
write to a claim that was decided names the resourceVersion that the decision was made on, so that
whoever was faster wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controller.cluster.claims import newer
from controller.cluster.trim import LARGEST, MOST_FINALIZERS
from controller.write.requests import NotLeadingError, RefusedError, Requests
from dra.allocator.problem import Decision
from dra.claims.allocation import label_of, node_label, write_allocation
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, ObjectKey, at
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import InvalidError, KubeError, ObjectNotFoundError
from dra.kube.timing import rfc3339
from dra.pods.pods import Pod


class ClaimWriter:
    """Writes claims by ``requests``, whose errors go through.

    ``unanswered`` are the claims, by UID, to which an allocation was sent and not answered, in the
    state that was written to. An allocation names the resourceVersion that it fits, and a later one
    of the same claim a later version: the last one of each is enough. With ``labels_nodes`` claims
    name in a label the node that they are allocated to (``dra.claims.allocation``).
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
        self.unanswered: dict[str, Claim] = {}  # no step on it takes more than one bytecode

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
        body = {"metadata": {"uid": metadata["uid"], "labels": labels}}
        return self.requests.patch(RESOURCE_CLAIMS, (metadata["namespace"], metadata["name"]), body)

    def _node_label(self, node: str) -> dict[str, str]:
        return {node_label(self._driver): label_of(node)}

    def remove_finalizer(self, claim: Claim) -> Obj:
        return self._set_finalizers(claim, [f for f in claim.finalizers if f != self._finalizer])

    def allocate(
        self, claim: Claim, decision: Decision, *, config: Iterable[Mapping[str, Any]], pod: Pod
    ) -> Obj:
        """Write a claim's part of a decision, reserved for ``pod``; it must have our finalizer.

        The scheduler reserves what is not reserved yet before it binds a pod, with a write of its
        own; what it finds reserved it leaves alone.

        Raises:
            RefusedError: a permission is missing.
        """
        requests = {c.name: c for request in claim.requests for c in request.choices}
        order = {name: n for n, name in enumerate(requests)}
        devices = [
            replace(
                p.allocated(self._driver, decision.pool),
                tolerations=requests[p.request].tolerations,
            )
            for p in sorted(decision.of(claim.ref), key=lambda p: order[p.request])
        ]
        stamp = rfc3339(self.requests.now())
        allocation = write_allocation(devices, decision.node, timestamp=stamp, config=config)
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

    def may_be_made(self, claims: Mapping[ObjectKey, KnownClaim]) -> list[ClaimRef]:
        """Claims that an unanswered allocation still fits, for all that is known of ``claims``.

        What is known may be older than what was sent: the answer to our finalizer before it.
        Another claim of the name is newer.
        """
        return [
            claim.ref
            for claim in self.unanswered.copy().values()
            if (known := claims.get(claim.ref.key))
            and not newer(known.claim.resource_version, claim.resource_version)
        ]

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
                self.unanswered[claim.ref.uid] = claim
            raise
        self.unanswered.pop(claim.ref.uid, None)
        return stored

    def _set_status(self, claim: Claim, status: Obj) -> Obj:
        return self._patch(claim, {"status": status}, subresource="status")

    def _patch(self, claim: Claim, body: Obj, *, subresource: str = "") -> Obj:
        found = {"uid": claim.ref.uid, "resourceVersion": claim.resource_version}
        versioned = {**body, "metadata": found | body.get("metadata", {})}
        return self.requests.patch(
            RESOURCE_CLAIMS, claim.ref.key, versioned, subresource=subresource
        )
