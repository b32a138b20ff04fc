"""The health of prepared devices, as kubelet shows it in pod status: DRAResourceHealth.

Every message is the complete list. Kubelet takes a device that is not repeated in 30 s for unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import grpc

from api.kubelet.dra_health.v1 import api_pb2 as v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra_health.v1alpha1 import api_pb2 as v1alpha1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc
from kubeletplugin.gpus.health.device_health import DeviceHealth

REPEAT_SECONDS = 10.0


class HealthBoard:
    """Wakes the streams when something has changed. Thread-safe."""

    def __init__(self, read: Callable[[], tuple[DeviceHealth, ...]]) -> None:
        self._read = read
        self._condition = threading.Condition()
        self._changes = 0
        self._closed = False

    def notify(self) -> None:
        """Send the health again, as it may have changed."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def stream(self, context: grpc.ServicerContext) -> Iterator[tuple[DeviceHealth, ...]]:
        """The complete list: at once, after every change, and every 10 s; until kubelet goes."""
        gone = threading.Event()

        def leave() -> None:
            gone.set()
            self.notify()

        if not context.add_callback(leave):
            return
        while not (gone.is_set() or self._closed):
            with self._condition:
                seen = self._changes
            yield self._read()
            with self._condition:
                self._condition.wait_for(
                    lambda seen=seen: self._changes != seen or self._closed,  # type: ignore[misc]
                    REPEAT_SECONDS,
                )


class _Health:
    """The call of a DRAResourceHealth service, in the messages of one version of the protocol."""

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


class HealthV1(_Health, v1_grpc.DRAResourceHealthServicer):
    """v1.DRAResourceHealth."""

    messages: ClassVar[Any] = v1


class HealthV1Alpha1(_Health, v1alpha1_grpc.DRAResourceHealthServicer):
    """v1alpha1.DRAResourceHealth, for kubelets before 1.37."""

    messages: ClassVar[Any] = v1alpha1
