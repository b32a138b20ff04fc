"""Kubelet's DRA services over the one Node: DRAPlugin v1 and v1beta1.

The two protocols differ in the package of their messages only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra.v1beta1 import api_pb2 as v1beta1
from api.kubelet.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from api.kubelet.dra_health.v1 import api_pb2_grpc as health_v1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.node import ClaimAnswer, Node
from kubeletplugin.claims.prepare.prepare import Prepared
from kubeletplugin.kubelet.health import HealthBoard, HealthV1, HealthV1Alpha1

_log = logging.getLogger(__name__)
_AT_ONCE = 16
"""Claims of one call that are worked on side by side."""


class _Claim(Protocol):
    namespace: str
    name: str
    uid: str


def serve_claims(
    claims: Iterable[_Claim], serve: Callable[..., ClaimAnswer], node: Node
) -> dict[str, ClaimAnswer]:
    """Outcomes by claim UID, all within one deadline."""
    refs = {c.uid: ClaimRef(c.namespace, c.name, c.uid) for c in claims}
    deadline = node.deadline()
    if len(refs) <= 1:
        return {uid: serve(ref, deadline=deadline) for uid, ref in refs.items()}
    with ThreadPoolExecutor(min(len(refs), _AT_ONCE), thread_name_prefix="claims") as pool:
        answers = pool.map(lambda ref: serve(ref, deadline=deadline), refs.values())
        return dict(zip(refs, answers, strict=True))


class _Plugin:
    """The calls of a DRAPlugin service, in the messages of one version of the protocol."""

    messages: ClassVar[Any]
    """The module with the version's messages."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self,
        request: Any,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> Any:
        """Prepare every claim of the request."""
        answers = serve_claims(request.claims, self._node.prepare, self._node)
        return self.messages.NodePrepareResourcesResponse(
            claims={
                uid: self.messages.NodePrepareResourceResponse(
                    error=answer.error, devices=[self._device(d) for d in answer.devices]
                )
                for uid, answer in answers.items()
            }
        )

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self,
        request: Any,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> Any:
        """Unprepare every claim of the request."""
        answers = serve_claims(request.claims, self._node.unprepare, self._node)
        return self.messages.NodeUnprepareResourcesResponse(
            claims={
                uid: self.messages.NodeUnprepareResourceResponse(error=answer.error)
                for uid, answer in answers.items()
            }
        )

    def _device(self, prepared: Prepared) -> Any:
        return self.messages.Device(
            request_names=prepared.requests,
            pool_name=prepared.pool,
            device_name=prepared.device,
            cdi_device_ids=prepared.cdi_ids,
            **self._share(prepared),
        )

    def _share(self, prepared: Prepared) -> dict[str, str]:
        return {"share_id": prepared.share_id} if prepared.share_id else {}


class PluginV1(_Plugin, v1_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin."""

    messages: ClassVar[Any] = v1


class PluginV1Beta1(_Plugin, v1beta1_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin, for kubelets before 1.34."""

    messages: ClassVar[Any] = v1beta1

    def _share(self, prepared: Prepared) -> dict[str, str]:  # noqa: ARG002 - it has no such field
        return {}


def add_services(node: Node, board: HealthBoard, server: grpc.Server) -> None:
    """Serve all that kubelet asks of a driver over one socket."""
    v1_grpc.add_DRAPluginServicer_to_server(PluginV1(node), server)
    v1beta1_grpc.add_DRAPluginServicer_to_server(PluginV1Beta1(node), server)
    health_v1.add_DRAResourceHealthServicer_to_server(HealthV1(board), server)
    health_v1alpha1.add_DRAResourceHealthServicer_to_server(HealthV1Alpha1(board), server)
