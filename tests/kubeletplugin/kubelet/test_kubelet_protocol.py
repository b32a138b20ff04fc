"""Sockets, registration, health and the end of the program, as kubelet meets them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from api.kubelet.dra_health.v1alpha1 import api_pb2 as health_v1alpha1
from api.kubelet.dra_health.v1alpha1 import api_pb2_grpc as health_v1alpha1_grpc
from kubeletplugin.errors import HostError
from kubeletplugin.sockets import SocketServer
from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


def test_the_service_answers_before_the_registration_socket_appears(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    served: list[bool] = []
    bind = SocketServer._bind

    def watched(server: SocketServer, path: Path) -> None:
        if path == rig.registration_socket:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(rig.service_socket))
                served.append(True)
        bind(server, path)

    monkeypatch.setattr(SocketServer, "_bind", watched)
    rig.start()
    assert served == [True]


def test_stale_sockets_of_ours_are_replaced_and_others_stay(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    other = rig.roots.registry / "other-reg.sock"
    for path in (rig.service_socket, rig.registration_socket, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    rig.start()
    assert rig.prepared(rig.claim(SLICE))
    assert other.exists()


def test_a_file_in_the_place_of_a_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("somebody's")
    with pytest.raises(HostError, match="in the way"):
        SocketServer(path, register=lambda server: None, workers=1).start()
    assert path.read_text() == "somebody's"


def test_stopping_takes_the_registration_first_and_finishes_running_calls(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    hang = Fault(id="hang", function="nvmlDeviceCreateGpuInstanceWithPlacement", action="hang")
    rig.machine.inject(hang)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(rig.prepare, ref)
        wait_for("the hang", lambda: rig.machine.faults.seen("hang") == 1)
        stopping = pool.submit(rig.stop)
        wait_for("the socket to go", lambda: not rig.registration_socket.exists())
        assert not answer.done()
        rig.machine.clear_faults()
        assert not answer.result().error
        stopping.result()
    assert not rig.service_socket.exists()
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_health_lists_prepared_devices_and_follows_changes(rig: Rig, version: str) -> None:
    ref = rig.claim(SLICE)
    pb, stubs = (
        (health_v1, health_v1_grpc) if version == "v1" else (health_v1alpha1, health_v1alpha1_grpc)
    )
    with closing(rig.channel()) as channel:
        stream = stubs.DRAResourceHealthStub(channel).NodeWatchResources(
            pb.NodeWatchResourcesRequest()
        )
        assert list(next(stream).devices) == []
        rig.prepared(ref)

        def until(health: int) -> str:
            for message in stream:
                for device in message.devices:
                    assert device.device.device_name == SLICE
                    assert device.device.pool_name == rig.node
                    if device.health == health:
                        return str(device.message)
            return ""

        assert until(pb.HEALTHY) == ""
        rig.machine.lose(0)
        assert rig.daemon is not None
        rig.poll()
        assert "GPU_IS_LOST" in until(pb.UNHEALTHY)
        stream.cancel()


def test_health_streams_however_many_leave_room_for_claims(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    with closing(rig.channel()) as channel:
        stub = health_v1_grpc.DRAResourceHealthStub(channel)
        # Nobody reads most of them.
        streams = [
            stub.NodeWatchResources(health_v1.NodeWatchResourcesRequest()) for _ in range(300)
        ]
        assert rig.prepared(ref)
        newest = stub.NodeWatchResources(health_v1.NodeWatchResourcesRequest())
        assert [d.device.device_name for d in next(newest).devices] == [SLICE]
        with pytest.raises(grpc.RpcError, match="CANCELLED"):
            for _ in streams[0]:
                pass
        newest.cancel()


def test_a_stream_that_kubelet_left_gives_its_worker_back(rig: Rig) -> None:
    for _ in range(40):
        with closing(rig.channel()) as channel:
            stream = health_v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
                health_v1.NodeWatchResourcesRequest()
            )
            next(stream)
            stream.cancel()
    assert rig.prepared(rig.claim(SLICE))


def test_a_list_of_health_is_complete_or_not_given(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.stop()
    rig.machine.inject(Fault(function="nvmlInit*", action="hang", times=0))
    rig.start(ready=False)
    with closing(rig.channel()) as channel:
        stream = health_v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
            health_v1.NodeWatchResourcesRequest()
        )
        assert rig.daemon is not None
        rig.daemon.health.notify()
        rig.machine.clear_faults()
        assert [d.device.device_name for d in next(stream).devices] == [SLICE]
        stream.cancel()
