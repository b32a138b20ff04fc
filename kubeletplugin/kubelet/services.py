"""The services that kubelet calls: registration, DRAPlugin and DRAResourceHealth.

DRAResourceHealth is served in two versions, which differ in the package of their messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol

import grpc

from api.kubelet.dra.v1 import api_pb2 as v1
from api.kubelet.dra.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from api.kubelet.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from api.kubelet.pluginregistration.v1 import api_pb2 as registering
from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.node import ClaimAnswer, Node
from kubeletplugin.claims.prepare import Prepared
from kubeletplugin.gpus.health import DeviceHealth
from kubeletplugin.times import HEALTH_SECONDS

_log = logging.getLogger(__name__)
_STREAMS = 8
"""Upper bound on streams of health: kubelet has one, and a second while it connects anew."""
_AT_ONCE = 16
"""Upper bound on claims of one call that are worked on at the same time."""

SERVICES = (
    "v1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""Services on the service socket; kubelet uses the first of each kind that it knows."""


def add_services(
    node: Node, board: HealthBoard, registration: Registration, server: grpc.Server
) -> None:
    """Add all services that kubelet calls to ``server``."""
    registration_grpc.add_RegistrationServicer_to_server(registration, server)
    v1_grpc.add_DRAPluginServicer_to_server(Plugin(node), server)
    health_v1_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(board), server)
    health_v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(HealthV1Alpha1(board), server)


class Registration(registration_grpc.RegistrationServicer):
    """Registration service, on a socket in plugins_registry.

    It answers from memory: kubelet waits one second only. ``on_registered``: called in a thread of
    the server whenever kubelet has registered the plugin.
    """

    def __init__(self, driver: str, endpoint: Path, on_registered: Callable[[], None]) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._on_registered = on_registered

    def GetInfo(  # noqa: N802 - the protocol's name
        self,
        request: registering.InfoRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> registering.PluginInfo:
        """Return the name of this driver, the path of its service socket, and its services."""
        return registering.PluginInfo(
            type="DRAPlugin",
            name=self._driver,
            endpoint=str(self._endpoint),
            supported_versions=SERVICES,
        )

    def NotifyRegistrationStatus(  # noqa: N802 - the protocol's name
        self,
        request: registering.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> registering.RegistrationStatusResponse:
        """Take the result of the registration; after a failure kubelet tries again by itself."""
        if request.plugin_registered:
            _log.info("registered with kubelet as %s", self._driver)
            self._on_registered()
        else:
            _log.error("kubelet did not register %s: %s", self._driver, request.error)
        return registering.RegistrationStatusResponse()


class _Claim(Protocol):
    namespace: str
    name: str
    uid: str


def serve_claims(
    claims: Iterable[_Claim], serve: Callable[..., ClaimAnswer], node: Node
) -> dict[str, ClaimAnswer]:
    """Call ``serve`` for each claim, with one deadline for all; returns answers by claim UID."""
    refs = {c.uid: ClaimRef(c.namespace, c.name, c.uid) for c in claims}
    deadline = node.deadline()
    if len(refs) <= 1:
        return {uid: serve(ref, deadline=deadline) for uid, ref in refs.items()}
    with ThreadPoolExecutor(min(len(refs), _AT_ONCE), thread_name_prefix="claims") as pool:
        answers = pool.map(lambda ref: serve(ref, deadline=deadline), refs.values())
        return dict(zip(refs, answers, strict=True))


class Plugin(v1_grpc.DRAPluginServicer):
    """k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.NodePrepareResourcesResponse:
        """Prepare every claim of the request."""
        answers = serve_claims(request.claims, self._node.prepare, self._node)
        return v1.NodePrepareResourcesResponse(
            claims={
                uid: v1.NodePrepareResourceResponse(
                    error=answer.error, devices=[self._device(d) for d in answer.devices]
                )
                for uid, answer in answers.items()
            }
        )

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - the protocol's signature
    ) -> v1.NodeUnprepareResourcesResponse:
        """Unprepare every claim of the request."""
        answers = serve_claims(request.claims, self._node.unprepare, self._node)
        return v1.NodeUnprepareResourcesResponse(
            claims={
                uid: v1.NodeUnprepareResourceResponse(error=answer.error)
                for uid, answer in answers.items()
            }
        )

    def _device(self, prepared: Prepared) -> v1.Device:
        device = v1.Device(
            request_names=prepared.requests,
            pool_name=prepared.pool,
            device_name=prepared.device,
            cdi_device_ids=prepared.cdi_ids,
        )
        if prepared.share_id:
            device.share_id = prepared.share_id
        return device


class HealthBoard:
    """Source of the health streams, woken by :meth:`notify`. Thread-safe.

    ``read``: returns the health of all prepared devices, None while that is not known.
    """

    def __init__(self, read: Callable[[], tuple[DeviceHealth, ...] | None]) -> None:
        self._read = read
        self._condition = threading.Condition()
        self._changes = 0
        self._closed = False
        self._open: list[grpc.ServicerContext] = []

    def notify(self) -> None:
        """Have all streams send the health again, as it may have changed."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def stream(self, context: grpc.ServicerContext) -> Iterator[tuple[DeviceHealth, ...]]:
        """Yield the complete list at once, after every change, and every ``HEALTH_SECONDS``.

        Nothing while the list is not complete: kubelet takes a device that is not on it for one of
        which nothing is known.

        The stream ends when kubelet ends the call, at :meth:`close`, and once ``_STREAMS`` others
        were opened after it: each takes a worker, which Prepare needs.
        """
        gone = threading.Event()

        def leave() -> None:
            gone.set()
            self.notify()

        if not context.add_callback(leave):
            return
        with self._condition:
            self._open = [*(each for each in self._open if each.is_active()), context]
            surplus, self._open = self._open[:-_STREAMS], self._open[-_STREAMS:]
        for each in surplus:
            each.cancel()
        while not (gone.is_set() or self._closed):
            with self._condition:
                seen = self._changes
            if (devices := self._read()) is not None:
                yield devices
            with self._condition:
                self._condition.wait_for(
                    lambda seen=seen: self._changes != seen or self._closed,  # type: ignore[misc]
                    HEALTH_SECONDS,
                )


class _Health:
    """The call of a DRAResourceHealth service, in the messages of one version of the protocol.

    Every message is the complete list of prepared devices, as kubelet shows it in pod status.
    """

    messages: ClassVar[Any]
    """The module with the version's messages."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    def NodeWatchResources(  # noqa: N802 - the protocol's name
        self,
        request: Any,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,
    ) -> Iterator[Any]:
        """Stream the health of all prepared devices."""
        for devices in self._board.stream(context):
            yield self.messages.NodeWatchResourcesResponse(
                devices=[self._device(d) for d in devices]
            )

    def _device(self, told: DeviceHealth) -> Any:
        return self.messages.DeviceHealth(
            device=self.messages.DeviceIdentifier(pool_name=told.pool, device_name=told.device),
            health=self.messages.UNHEALTHY if told.problem else self.messages.HEALTHY,
            last_updated_time=int(time.time()),
            message=told.problem,
        )


class HealthV1(_Health, health_v1_grpc.DRAResourceHealthServicer):
    """v1.DRAResourceHealth."""

    messages: ClassVar[Any] = health_v1


class HealthV1Alpha1(_Health, health_v1alpha1_grpc.DRAResourceHealthServicer):
    """v1alpha1.DRAResourceHealth, for kubelets before 1.37."""

    messages: ClassVar[Any] = health_v1alpha1
