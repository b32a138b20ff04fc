"""The health of prepared devices, as kubelet shows it in pod status: DRAResourceHealth.

Every message is the complete list. Kubelet takes a device that is not repeated in 30 s for unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc

from api.kubelet.dra_health.v1 import api_pb2 as v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as v1_grpc
from api.kubelet.dra_health.v1alpha1 import api_pb2 as v1alpha1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc
from dra.conditions import GPU_LOST, INSTANCE_LOST, XID_ERROR
from dra.inventory import Gpu, InstanceState
from dra.reasons import NodeReason
from kubeletplugin.entries import HELD, Entry, State

REPEAT_SECONDS = 10.0

_ILL = frozenset({XID_ERROR, GPU_LOST, NodeReason.NVML_ERROR, NodeReason.NVML_HANG})
"""Reasons for which a GPU is not offered that also concern those who use it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a device is not healthy: a word for programs, and words for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One prepared device; ``problem`` is empty while it is healthy."""

    pool: str
    device: str
    problem: str = ""


def device_health(entries: Iterable[Entry], gpus: Iterable[Gpu]) -> tuple[DeviceHealth, ...]:
    """The health of every device that kubelet was told of, from what was last seen of its GPU."""
    by_uuid = {g.uuid: g for g in gpus}
    found: list[DeviceHealth] = []
    for entry in entries:
        if entry.state in HELD:
            problem = device_problem(entry, by_uuid.get(entry.gpu))
            message = problem.message if problem else ""
            found.append(DeviceHealth(entry.pool, entry.device, message))
    return tuple(found)


def device_problem(entry: Entry, gpu: Gpu | None) -> Problem | None:
    """What is wrong with a device; ``gpu`` is None if the node has not got it."""
    if gpu is None:
        return Problem(GPU_LOST, f"GPU {entry.gpu} is not in the node")
    if gpu.reason in _ILL and gpu.unavailable:
        return Problem(gpu.reason, gpu.unavailable)
    if entry.state is State.LOST:
        return Problem(INSTANCE_LOST, entry.note or "the slice is gone from the GPU")
    for instance in gpu.instances:
        if instance.claim is None or instance.claim.uid != entry.claim.uid:
            continue
        if instance.placement != entry.placement:
            continue
        if instance.state is InstanceState.LOST:
            return Problem(INSTANCE_LOST, "the slice is gone from the GPU")
        if instance.unhealthy:
            return Problem(XID_ERROR, instance.unhealthy)
    return None


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
