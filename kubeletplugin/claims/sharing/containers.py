"""Check that containers can use a claim that is shared by MPS.

A container cannot use a device shared by MPS together with another device. The controller checks
that too, and kube-scheduler does not. Kubelet's calls name no pod, so the pods that have reserved
the claim are read; this is done only for claims that need the check.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from api.decoding import decodable
from api.errors import InvalidObjectError
from dra.claims.claims import (
    Claim,
    Consumer,
    claim_names,
    container_uses,
    crowded,
    find_crowd,
    read_claim,
)
from dra.claims.sharing import settings_of, sharing_of
from dra.claims.stored import StoredClaim
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.errors import ForbiddenError, KubeError, ObjectNotFoundError
from kubeletplugin.common import Common
from kubeletplugin.errors import ClaimError, StartingError
from kubeletplugin.journal.entries import Entry

_log = logging.getLogger(__name__)
_ENDED = ("Succeeded", "Failed")


class _Part(msgspec.Struct, rename="camel"):
    """Part of a pod that is decoded; a whole pod of 1 MB would take many times that in memory."""


class _Metadata(_Part):
    name: str
    uid: str


class _Resources(_Part):
    claims: list[dict[str, Any]] | None = None


class _Container(_Part):
    name: str = ""
    resources: _Resources | None = None


class _Spec(_Part):
    node_name: str | None = None
    resource_claims: list[dict[str, Any]] | None = None
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None


class _Status(_Part):
    phase: str | None = None
    resource_claim_statuses: list[dict[str, Any]] | None = None
    extended_resource_claim_status: dict[str, Any] | None = None


@decodable
class _Pod(_Part):
    metadata: _Metadata
    spec: _Spec
    status: _Status | None = None


class ContainerCheck:
    """Checks the pods of this node that use a claim to be prepared. Thread-safe."""

    def __init__(self, common: Common) -> None:
        self._api = common.api
        self._journal = common.journal
        self._driver = common.options.driver_name
        self._node = common.options.node_name

    def check(self, claim: Claim, entries: Sequence[Entry]) -> None:
        """Check that a pod on this node can use a claim.

        One pod without a fault is enough. For MPS, pods are read only if a claim in the namespace
        uses it here. ``entries``: all entries of the claim.

        Raises:
            ClaimError: no pod can; the message names pod, container and claims.
            StartingError: the pods or claims cannot be read.
        """
        requests = _by_request((r, e.mps is not None) for e in entries for r in e.requests)
        if not any(requests.values()) and not self._journal.has_mps(claim.ref.namespace):
            return
        problem = ""
        for pod in self._pods(claim):
            found = self._problem(pod, claim, requests)
            if not found:
                return
            problem = problem or f"pod {pod['metadata']['name']}: {found}"
        if problem:
            raise ClaimError(problem)

    def _pods(self, claim: Claim) -> Iterator[Obj]:
        """The pods on this node that have reserved a claim and have not ended."""
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
            found = self._api.get_as(_Pod, PODS, consumer.name, namespace=namespace)
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
        pod: Obj = msgspec.to_builtins(found)
        return pod if found.metadata.uid == consumer.uid else None

    def _problem(self, pod: Obj, claim: Claim, requests: dict[str, bool]) -> str:
        """Text on the first container that uses an MPS device with another device, or empty.

        Only containers that use ``claim`` count. ``requests``: its requests, True if by MPS.
        """
        name, known = claim.ref.name, {claim.ref.name: requests}
        for container, uses in container_uses(pod, claim_names(pod)):
            used = sorted({use.claim for use in uses})
            if name not in used:
                continue
            for each in used:  # many containers may use the same ones
                if each not in known:
                    known[each] = self._by_mps(claim.ref.namespace, each)
            if crowd := find_crowd(uses, known):
                return crowded(container, crowd)
        return ""

    def _by_mps(self, namespace: str, name: str) -> dict[str, bool]:
        """Requests of another claim that this driver serves; True for those shared by MPS."""
        try:
            found = self._api.get_as(StoredClaim, RESOURCE_CLAIMS, name, namespace=namespace)
            claim = read_claim(found.allocated(self._driver))
        except ObjectNotFoundError:
            return {}
        except KubeError as error:
            raise StartingError(
                f"cannot read claim {name}, which a container uses beside this one: {error}; it is "
                "tried again"
            ) from error
        allocation = claim.allocation
        devices = allocation.of_driver(self._driver) if allocation is not None else ()
        if allocation is None or not devices:
            return {}
        settings = settings_of(allocation.config, self._driver)
        try:
            return _by_request(
                (d.base_request, sharing_of(settings, d.request).by_mps) for d in devices
            )
        except InvalidObjectError:  # the Prepare of that other claim fails
            return dict.fromkeys((d.base_request for d in devices), False)


def _by_request(devices: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Requests by name; True for those with a device shared by MPS."""
    found: dict[str, bool] = {}
    for request, by_mps in devices:
        found[request] = found.get(request, False) or by_mps
    return found
