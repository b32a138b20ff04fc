"""A device plugin that gives out the MIG devices that it is told of, as NVIDIA's does.

A process of its own: ``python -m tests.cluster.harness.deviceplugin KUBELET_ROOT RESOURCE ID...``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

_messages: Any
_services: Any
_messages, _services = grpc.protos_and_services("tests/cluster/harness/deviceplugin.proto")


class DevicePlugin:
    """Calls of kubelet's protocol of device plugins. ``ids``: of the devices."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids
        self._never = threading.Event()

    def GetDevicePluginOptions(self, *_: object) -> Any:  # noqa: N802 - the protocol's name
        """No wishes."""
        return _messages.DevicePluginOptions()

    def ListAndWatch(self, *_: object) -> Iterator[Any]:  # noqa: N802 - the protocol's name
        """All devices, healthy for ever."""
        devices = [_messages.Device(ID=each, health="Healthy") for each in self._ids]
        yield _messages.ListAndWatchResponse(devices=devices)
        self._never.wait()

    def Allocate(self, request: Any, _: object) -> Any:  # noqa: N802 - the protocol's name
        """The ids of a container's devices, in a variable."""
        answers = [
            _messages.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(each.devices_ids)}
            )
            for each in request.container_requests
        ]
        return _messages.AllocateResponse(container_responses=answers)


def serve(kubelet_root: Path, resource: str, ids: list[str]) -> None:
    """Register with kubelet, and serve until the process ends."""
    folder = kubelet_root / "device-plugins"
    socket = folder / "tests.sock"
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    _services.add_DevicePluginServicer_to_server(DevicePlugin(ids), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    with grpc.insecure_channel(f"unix:{folder}/kubelet.sock") as channel:
        wanted = _messages.RegisterRequest(
            version="v1beta1", endpoint=socket.name, resource_name=resource
        )
        _services.RegistrationStub(channel).Register(wanted, timeout=10)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
