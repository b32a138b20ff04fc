"""Containers that use a claim shared by MPS beside another, as the node refuses them.

The controller refuses them too, but kube-scheduler knows no MPS. kubelet names no pod: those that
have a claim reserved are read, and only where a claim is shared by MPS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim, Consumer, claim_names, container_claims, read_claim
from dra.claims.sharing import crowded, sharing_of
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.client.transport import KubeApi
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.errors import ClaimError, StartingError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import Journal

_ENDED = ("Succeeded", "Failed")


class ContainerCheck:
    """Looks at the pods of ``node`` for which a claim is to be prepared. Thread-safe."""

    def __init__(self, api: KubeApi, journal: Journal, *, driver: str, node: str) -> None:
        self._api = api
        self._journal = journal
        self._driver = driver
        self._node = node

    def check(self, claim: Claim, devices: Iterable[AllocatedDevice]) -> None:
        """Refuse a claim that no pod could use: ``devices`` are those that it was given here.

        A pod that uses it as it should has it prepared, also beside others that do not; a claim
        that is prepared stays. While nothing in its namespace is shared by MPS, nothing is read.

        Raises:
            ClaimError: names pod, container and claims.
            StartingError: the pods or claims cannot be read.
        """
        by_mps = any(d.sharing.by_mps for d in devices)
        if any(e.state in HELD for e in self._journal.of_claim(claim.ref.uid)):
            return
        if not by_mps and not self._has_mps(claim.ref.namespace):
            return
        problem = ""
        for pod in self._pods(claim):
            found = self._problem(pod, claim, by_mps=by_mps)
            if not found:
                return
            problem = problem or f"pod {pod['metadata']['name']}: {found}"
        if problem:
            raise ClaimError(problem)

    def _has_mps(self, namespace: str) -> bool:
        entries = self._journal.entries()
        return any(e.mps is not None and e.claim.namespace == namespace for e in entries)

    def _pods(self, claim: Claim) -> Iterator[Obj]:
        """The pods on this node for which kubelet may ask."""
        for consumer in claim.reserved_for:
            pod = self._pod(claim.ref.namespace, consumer)
            if pod is None or at(pod, "spec", "nodeName", default="") != self._node:
                continue
            if at(pod, "status", "phase", default="") not in _ENDED:
                yield pod

    def _pod(self, namespace: str, consumer: Consumer) -> Obj | None:
        if (consumer.api_group, consumer.resource) != ("", "pods"):
            return None
        try:
            pod = self._api.get(PODS, consumer.name, namespace=namespace)
        except ObjectNotFoundError:
            return None
        except ForbiddenError as error:
            raise StartingError(
                f"not allowed to read pod {consumer.name}, which uses the claim: {error}; grant "
                "this plugin's service account get on pods"
            ) from error
        except KubeError as error:
            raise StartingError(
                f"cannot read pod {consumer.name}, which uses the claim: {error}; it is tried again"
            ) from error
        return pod if pod["metadata"]["uid"] == consumer.uid else None

    def _problem(self, pod: Obj, claim: Claim, *, by_mps: bool) -> str:
        """Fault of the first container that uses the claim beside another of this driver's."""
        name = claim.ref.name
        for container, used in container_claims(pod, claim_names(pod)):
            others = used - {name} if name in used else ()
            shared = {other: self._by_mps(claim.ref.namespace, other) for other in sorted(others)}
            ours = [other for other, mps in shared.items() if mps is not None]
            if ours and (by_mps or any(shared.values())):
                return crowded(container, [name, *ours])
        return ""

    def _by_mps(self, namespace: str, name: str) -> bool | None:
        """True if a claim is shared by MPS; None if nothing of this driver was given to it."""
        try:
            claim = read_claim(self._api.get(RESOURCE_CLAIMS, name, namespace=namespace))
        except ObjectNotFoundError:
            return None
        except KubeError as error:
            raise StartingError(
                f"cannot read claim {name}, which a container uses beside this one: {error}; it is "
                "tried again"
            ) from error
        allocation = claim.allocation
        devices = allocation.of_driver(self._driver) if allocation is not None else ()
        if allocation is None or not devices:
            return None
        try:
            found = [sharing_of(allocation.config, d.request, self._driver) for d in devices]
        except InvalidObjectError:
            return False  # its own Prepare fails
        return any(sharing.by_mps for sharing in found)
