"""Kubelet's DRA services over the one Node: DRAPlugin v1 and v1beta1.

The two protocols differ in the names of their messages only; each class below translates one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra.v1beta1 import api_pb2 as v1beta1
from api.kubelet.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra.inventory import ClaimRef
from kubeletplugin.node import Node, Outcome

_log = logging.getLogger(__name__)
_AT_ONCE = 16
"""Claims of one call that are worked on side by side."""


class _Claim(Protocol):
    namespace: str
    name: str
    uid: str


def serve_claims(
    claims: Iterable[_Claim], serve: Callable[..., Outcome], node: Node
) -> dict[str, Outcome]:
    """One outcome per claim UID, all within one deadline."""
    refs = {c.uid: ClaimRef(c.namespace, c.name, c.uid) for c in claims}
    deadline = node.deadline()
    if len(refs) <= 1:
        return {uid: serve(ref, deadline=deadline) for uid, ref in refs.items()}
    with ThreadPoolExecutor(min(len(refs), _AT_ONCE), thread_name_prefix="claims") as pool:
        outcomes = pool.map(lambda ref: serve(ref, deadline=deadline), refs.values())
        return dict(zip(refs, outcomes, strict=True))


class PluginV1(v1_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.NodePrepareResourcesResponse:
        """Prepare every claim of the request."""
        outcomes = serve_claims(request.claims, self._node.prepare, self._node)
        return v1.NodePrepareResourcesResponse(
            claims={
                uid: v1.NodePrepareResourceResponse(
                    error=outcome.error,
                    devices=[
                        v1.Device(
                            request_names=d.requests,
                            pool_name=d.pool,
                            device_name=d.device,
                            cdi_device_ids=d.cdi_ids,
                        )
                        for d in outcome.devices
                    ],
                )
                for uid, outcome in outcomes.items()
            }
        )

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.NodeUnprepareResourcesResponse:
        """Unprepare every claim of the request."""
        outcomes = serve_claims(request.claims, self._node.unprepare, self._node)
        return v1.NodeUnprepareResourcesResponse(
            claims={
                uid: v1.NodeUnprepareResourceResponse(error=outcome.error)
                for uid, outcome in outcomes.items()
            }
        )


class PluginV1Beta1(v1beta1_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin, for kubelets before 1.34."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1beta1.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1beta1.NodePrepareResourcesResponse:
        """Prepare every claim of the request."""
        outcomes = serve_claims(request.claims, self._node.prepare, self._node)
        return v1beta1.NodePrepareResourcesResponse(
            claims={
                uid: v1beta1.NodePrepareResourceResponse(
                    error=outcome.error,
                    devices=[
                        v1beta1.Device(
                            request_names=d.requests,
                            pool_name=d.pool,
                            device_name=d.device,
                            cdi_device_ids=d.cdi_ids,
                        )
                        for d in outcome.devices
                    ],
                )
                for uid, outcome in outcomes.items()
            }
        )

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1beta1.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        """Unprepare every claim of the request."""
        outcomes = serve_claims(request.claims, self._node.unprepare, self._node)
        return v1beta1.NodeUnprepareResourcesResponse(
            claims={
                uid: v1beta1.NodeUnprepareResourceResponse(error=outcome.error)
                for uid, outcome in outcomes.items()
            }
        )
