"""The health of prepared devices, as kubelet shows it in pod status: DRAResourceHealth.

Every message is the complete list. Kubelet takes a device that is not repeated in 30 s for unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from api.kubelet.dra_health.v1 import api_pb2 as v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra_health.v1alpha1 import api_pb2 as v1alpha1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc
from dra.inventory import Gpu, InstanceState
from kubeletplugin.journal import Entry, State

REPEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One prepared device; ``problem`` is empty while it is healthy."""

    pool: str
    device: str
    problem: str = ""


def device_health(entries: tuple[Entry, ...], gpus: tuple[Gpu, ...]) -> tuple[DeviceHealth, ...]:
    """The health of every prepared device, from what was last seen of its GPU."""
    by_uuid = {g.uuid: g for g in gpus}
    return tuple(
        DeviceHealth(e.pool, e.device, _problem(e, by_uuid.get(e.gpu)))
        for e in entries
        if e.state is State.PREPARED
    )


def _problem(entry: Entry, gpu: Gpu | None) -> str:
    if gpu is None:
        return f"GPU {entry.gpu} is not in the node"
    if gpu.unavailable:
        return gpu.unavailable
    lost = any(
        i.state is InstanceState.LOST and i.claim is not None and i.claim.uid == entry.claim.uid
        for i in gpu.instances
        if i.placement == entry.placement
    )
    return "the slice is gone from the GPU" if lost else ""


class HealthBoard:
    """Wakes the streams when something has changed. Thread-safe."""

    def __init__(self, read: Callable[[], tuple[DeviceHealth, ...]]) -> None:
        self._read = read
        self._condition = threading.Condition()
        self._changes = 0
        self._closed = False

    def notify(self) -> None:
        """Something may have changed."""
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


class HealthV1(v1_grpc.DRAResourceHealthServicer):
    """v1.DRAResourceHealth."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    def NodeWatchResources(  # noqa: N802 - the protocol's name
        self,
        request: v1.NodeWatchResourcesRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,
    ) -> Iterator[v1.NodeWatchResourcesResponse]:
        """Stream the health of all prepared devices."""
        for devices in self._board.stream(context):
            yield v1.NodeWatchResourcesResponse(
                devices=[
                    v1.DeviceHealth(
                        device=v1.DeviceIdentifier(pool_name=d.pool, device_name=d.device),
                        health=v1.UNHEALTHY if d.problem else v1.HEALTHY,
                        last_updated_time=int(time.time()),
                        message=d.problem,
                    )
                    for d in devices
                ]
            )


class HealthV1Alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    """v1alpha1.DRAResourceHealth, for kubelets before 1.37."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board

    def NodeWatchResources(  # noqa: N802 - the protocol's name
        self,
        request: v1alpha1.NodeWatchResourcesRequest,  # noqa: ARG002 - the protocol's signature
        context: grpc.ServicerContext,
    ) -> Iterator[v1alpha1.NodeWatchResourcesResponse]:
        """Stream the health of all prepared devices."""
        for devices in self._board.stream(context):
            yield v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    v1alpha1.DeviceHealth(
                        device=v1alpha1.DeviceIdentifier(pool_name=d.pool, device_name=d.device),
                        health=v1alpha1.UNHEALTHY if d.problem else v1alpha1.HEALTHY,
                        last_updated_time=int(time.time()),
                        message=d.problem,
                    )
                    for d in devices
                ]
            )
