"""Two plugins on one node during an update: one owns the hardware, neither takes the other's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from api.kubelet.dra.v1 import api_pb2 as v1
from dra.kube.client import KubeApi
from kubeletplugin.daemon.daemon import serve
from kubeletplugin.errors import HostError
from kubeletplugin.options import Options
from kubeletplugin.sockets import MAX_SOCKET_PATH, remove_stale, sockets
from kubeletplugin.telemetry.telemetry import Telemetry
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import DRIVER, Rig, wire

OLD, NEW = "11111111-aaaa-4bbb-8ccc-222222222222", "33333333-aaaa-4bbb-8ccc-444444444444"


def options(rig: Rig, instance: str) -> Options:
    return Options(node_name=rig.node, driver_name=DRIVER, roots=rig.roots, instance=instance)


class Process:
    """A plugin as ``python -m kubeletplugin --instance`` runs it."""

    def __init__(self, rig: Rig, instance: str) -> None:
        self.options = options(rig, instance)
        self.sockets = sockets(self.options)
        self._stop = threading.Event()
        self.telemetry = Telemetry()
        arguments = (self.options, KubeApi(rig.http), self.telemetry, self._stop)
        self._thread = threading.Thread(target=serve, args=arguments)
        self._thread.start()

    def unready(self) -> tuple[str, ...]:
        return self.telemetry.probes.ready.problems()

    def serves(self) -> bool:
        return self.sockets.registration.exists()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_a_new_plugin_waits_for_the_old_one_and_takes_over(rig: Rig) -> None:
    rig.stop()
    old = Process(rig, OLD)
    wait_for("the old one", old.serves)
    wait_for("readiness", lambda: not old.unready())
    new = Process(rig, NEW)
    try:
        # A DaemonSet ends the old one only when the new one is ready.
        wait_for("readiness to take over", lambda: not new.unready())
        assert new.telemetry.probes.live.problems() == ()
        ref = rig.claim("gpu-0-mig-1g5gb-19-4")
        assert not new.serves()
        with closing(rig.channel(old.sockets.service)) as channel:
            request = v1.NodePrepareResourcesRequest(claims=[wire(ref)])
            answer = rig.stub(channel).NodePrepareResources(request, timeout=45)
        assert not answer.claims[ref.uid].error
        hardware = rig.machine.snapshot()
        old.stop()
        wait_for("the new one", new.serves)
        assert not old.sockets.registration.exists()
        assert not old.sockets.service.exists()
        assert new.sockets.service.exists()
        assert rig.machine.snapshot() == hardware
        assert [e.claim for e in rig.journal()] == [ref]
    finally:
        old.stop()
        new.stop()
    assert not new.sockets.service.exists()


def test_an_instance_too_long_for_a_socket_is_shortened(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    assert sockets(options(rig, NEW)).service.name == f"dra-{NEW}.sock"
    long = sockets(options(rig, "x" * 200))
    other = sockets(options(rig, "x" * 199))
    assert long != other
    assert all(len(str(p)) <= MAX_SOCKET_PATH for p in (long.service, long.registration))
    deep = replace(rig.roots, kubelet=Path("/" + "k" * 100))
    with pytest.raises(HostError, match="socket path"):
        sockets(replace(options(rig, NEW), roots=deep))


def stale(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


def test_sockets_of_killed_instances_are_removed_and_of_nobody_else(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    killed, mine, bare = (sockets(options(rig, i)) for i in (OLD, NEW, ""))
    gone = [stale(p) for s in (killed, bare) for p in (s.registration, s.service)]
    others = stale(rig.roots.registry / f"{DRIVER}-x-reg.sock")
    plain = mine.service.parent / "dra-file.sock"
    plain.write_text("")
    with socket.socket(socket.AF_UNIX) as alive:
        served = mine.service.parent / "dra-alive.sock"
        alive.bind(str(served))
        alive.listen()
        remove_stale(options(rig, NEW))
        assert served.exists()
    assert not any(p.exists() for p in gone)
    assert others.exists()
    assert plain.exists()
