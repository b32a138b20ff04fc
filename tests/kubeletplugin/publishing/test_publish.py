"""The MigNode object: true, owned by the Node, and written only when it was not true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import MIG_NODES, NODES
from dra.kube.reflector import Change
from kubeletplugin import times
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import A100, Rig, exists


def settle(rig: Rig) -> None:
    wait_for("MigNode", rig.published)


@pytest.mark.parametrize("sick", ["looks hang", "a check fails"])
def test_heartbeats_are_written_as_long_as_the_plugin_looks_and_serves(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, sick: str
) -> None:
    monkeypatch.setattr(times, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(times, "HEARTBEAT_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(times, "POLL_SECONDS", 0.1)
    rig = make_rig()
    rig.start()
    assert rig.daemon is not None
    publisher, pulse = rig.daemon.mignode, rig.telemetry.liveness.hardware

    def beat() -> str:
        return str(rig.mignode()["status"].get("lastHeartbeatTime", ""))

    wait_for("a heartbeat", beat)
    earlier = beat()
    wait_for("the next one", lambda: beat() > earlier)
    if sick == "looks hang":
        rig.machine.inject(Fault(id="hang", function="nvmlDeviceGetMigMode", action="hang"))
        monkeypatch.setattr(times, "LOOK_OVERDUE_SECONDS", 0.5)
        wait_for("the hang", lambda: pulse.silence > 0.5)
    else:
        rig.telemetry.probes.live.add("test", lambda: "does not answer")
    wait_for("the write to end", lambda: publisher._beat(0.0) == times.HEARTBEAT_CHECK_SECONDS)
    last = beat()
    for _ in range(3):
        publisher.notify()
        assert publisher.wait_idle(PATIENCE)
    assert beat() == last
    rig.machine.clear_faults()
    rig.telemetry.probes.live.add("test", str)
    wait_for("it to be back", lambda: beat() > last)


def test_before_the_first_look_at_the_gpus_nothing_is_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "FIRST_LOOK_SECONDS", 0.1)
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-4"))
    there = [("gpu-0", "1g.5gb", 4, "prepared")]
    wait_for("the slice", lambda: rig.published_slices() == there)
    settle(rig)
    rig.stop()
    rig.http.writes = []
    rig.machine.inject(Fault(id="hang", function="nvmlDeviceGetCount*", action="hang"))
    rig.start(ready=False)
    assert rig.daemon is not None
    publisher = rig.daemon.mignode
    wait_for("the hang", lambda: rig.machine.faults.seen("hang") == 1)
    publisher.notify()
    assert publisher.wait_idle(PATIENCE)
    publisher.stop()
    assert rig.http.writes == []
    assert rig.published_slices() == there


def test_deleted_it_comes_back(rig: Rig) -> None:
    settle(rig)
    rig.api.delete(MIG_NODES, rig.node)
    wait_for("it", lambda: exists(rig.api, MIG_NODES, rig.node) and rig.published())


def test_an_own_earlier_state_is_put_right_if_the_server_went_back_to_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore of etcd; a slow watch reports it too, which is no news."""
    settle(rig)
    assert rig.daemon is not None
    ref = rig.claim("gpu-1-mig-2g10gb-14-2")
    rig.prepared(ref)
    wait_for("the slice", lambda: rig.published_slices() != [])
    early = rig.mignode()
    assert rig.unprepare(ref) == ""
    wait_for("no slice", lambda: rig.published_slices() == [])
    settle(rig)
    asked: list[str] = []
    rig.http.refuse = lambda method, path: asked.append(f"{method} {path}")
    status = f"PUT {MIG_NODES.path('', rig.node, 'status')}"
    publisher = rig.daemon.mignode
    monkeypatch.setattr(publisher._known.reflector.store, "list", lambda: [early])
    publisher._known._changed(Change("modified", early, early))
    publisher.notify()
    assert publisher.wait_idle(PATIENCE)
    assert status not in asked
    publisher._known._changed(Change("modified", early, early, rewound=True))
    wait_for("a write", lambda: status in asked)
    wait_for("the truth", rig.published)


def test_without_the_node_or_the_crd_it_is_tried_again(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(GpuSpec(A100))
    rig.api.delete(NODES, rig.node)
    rig.start(ready=False)
    wait_for("an attempt", lambda: rig.daemon and rig.daemon.mignode._pauses)
    assert not exists(rig.api, MIG_NODES, rig.node)
    rig.create_node()
    wait_for("it", rig.published)


def test_what_an_administrator_drains_is_left_as_it_is(rig: Rig) -> None:
    assert rig.daemon is not None
    settle(rig)
    drain = {"gpus": ["gpu-1"], "reason": "driver 580"}
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": drain}})
    known = rig.daemon.inventory.known
    wait_for("the drain", lambda: (now := known()) and now.is_drained("gpu-1"))
    rig.prepared(rig.claim("gpu-0-mig-2g10gb-14-2"))
    wait_for("the slice", lambda: rig.published_slices() == [("gpu-0", "2g.10gb", 2, "prepared")])
    # The plugin writes its part of the spec again, and only that.
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"pool": "x"}})
    wait_for("the pool", lambda: rig.mignode()["spec"]["pool"] == rig.node)
    assert rig.mignode()["spec"]["drain"] == drain
    rig.api.patch(MIG_NODES, rig.node, {"spec": {"drain": None}})
    wait_for("the end", lambda: (now := known()) and now.drain is None)
