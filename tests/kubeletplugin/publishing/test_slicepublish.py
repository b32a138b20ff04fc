"""ResourceSlices: there while kube-scheduler allocates, written only when they were not true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import NODES, RESOURCE_SLICES
from dra.gpu.inventory import AllocatorKind
from kubeletplugin import times
from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    devices,
    generations,
    idle,
    keep_counters_apart,
    look_again,
    looked,
    published,
    slices,
    writes,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


def test_every_placement_is_published_and_belongs_to_the_node(scheduled: Rig) -> None:
    assert len(devices(scheduled)) == 50
    assert scheduled.mignode()["spec"]["allocator"] == "scheduler"
    node = scheduled.api.get(NODES, scheduled.node)
    for index, found in enumerate(slices(scheduled)):
        assert found["metadata"]["name"] == f"{index:04}-{DRIVER}-{scheduled.node}"
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
        assert owner["controller"] is True, "Kubernetes' own drivers have it, and its tests want it"
        assert found["spec"]["pool"] == {
            "name": scheduled.node,
            "generation": 1,
            "resourceSliceCount": 2,
        }


def test_slices_go_over_to_a_node_that_was_made_anew(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    rig.api.delete(NODES, rig.node)
    wait_for("the collector", lambda: slices(rig) == [])
    rig.create_node()
    rig.start()
    wait_for("slices", lambda: len(devices(rig)) == 50)
    uid = rig.api.get(NODES, rig.node)["metadata"]["uid"]
    rig.stop()
    for found in slices(rig):
        del found["metadata"]["ownerReferences"]
        rig.api.replace(RESOURCE_SLICES, found)
    rig.start()
    wait_for(
        "owners",
        lambda: (
            {
                owner["uid"]
                for s in slices(rig)
                for owner in s["metadata"].get("ownerReferences", [])
            }
            == {uid}
        ),
    )


def test_at_rest_and_after_a_restart_nothing_is_written(scheduled: Rig) -> None:
    rig = scheduled
    ref = rig.claim("gpu-0-mig-1g5gb-19-4")
    rig.prepared(ref)
    wait_for("the MigNode", rig.published)
    rig.http.writes = []
    for _ in range(2):
        look_again(rig)
        wait_for("the wishes to be taken", lambda: idle(rig))
        rig.restart()
        wait_for("slices", lambda: published(rig))
        wait_for("a look", lambda: looked(rig))
    rig.stop()
    assert [w for w in writes(rig) if w != ("POST", SLICES)] == []
    assert generations(rig) == {1}
    versions = {s["metadata"]["generation"] for s in slices(rig)}
    assert versions == {1}
    statuses = [path for _, path in rig.http.writes if path.endswith("/status")]
    assert [p for p in statuses if "mignodes" in p] == []


def test_a_claim_that_the_scheduler_allocated_is_prepared(scheduled: Rig) -> None:
    """Without our finalizer, by the request names and class configuration of kube-scheduler."""
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "spread"},
    }
    opaque = {"driver": DRIVER, "parameters": parameters}
    ref = scheduled.claim(
        "gpu-1-mig-3g20gb-9-4",
        config=[{"source": "FromClass", "requests": ["r0"], "opaque": opaque}],
    )
    assert len(scheduled.own(ref)) == 1
    assert scheduled.slices() == [(1, "3g.20gb", 4, True)]


def test_a_foreign_instance_takes_its_room_away_until_it_is_gone(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    keep_counters_apart(rig, monkeypatch)
    rig.allocator = AllocatorKind.SCHEDULER
    rig.start()
    wait_for("slices", lambda: published(rig))
    made = rig.machine.create_slice(0, "3g.20gb", start=4)
    look_again(rig)
    wait_for("less room", lambda: "gpu-0-mig-7g40gb-0-0" not in devices(rig))
    found = devices(rig)
    assert "gpu-0-mig-4g20gb-5-0" in found
    assert "gpu-0-mig-3g20gb-9-4" not in found
    assert "gpu-1-mig-7g40gb-0-0" in found
    (counters,) = [
        c["counters"]
        for s in slices(rig)
        for c in s["spec"].get("sharedCounters", [])
        if c["name"] == "gpu-0-counter-set"
    ]
    assert [counters[f"memory-slice-{i}"]["value"] for i in range(8)] == list("11110000")
    assert generations(rig) == {2}
    rig.machine.destroy_slice(0, made.gpu_instance)
    look_again(rig)
    wait_for("the room", lambda: "gpu-0-mig-7g40gb-0-0" in devices(rig))


@pytest.mark.usefixtures("short_patience")
def test_a_slice_that_cannot_be_removed_is_unavailable(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scheduled
    ref = rig.claim("gpu-0-mig-3g20gb-9-4")
    rig.prepared(ref)
    monkeypatch.setattr(times, "GOING_SECONDS", 0.5)
    rig.machine.inject(
        Fault(id="busy", function="nvmlGpuInstanceDestroy", action="return", code=19, times=0)
    )
    assert rig.unprepare(ref) == ""
    wait_for("less room", lambda: "gpu-0-mig-3g20gb-9-4" not in devices(rig))
    assert "gpu-0-mig-4g20gb-5-0" in devices(rig)
    rig.machine.clear_faults()
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)
    wait_for("the room", lambda: "gpu-0-mig-3g20gb-9-4" in devices(rig))


def test_a_gpu_out_of_service_is_tainted(scheduled: Rig) -> None:
    rig = scheduled
    function = "nvmlDeviceGetGpuInstances"
    fault = Fault(id="x", function=function, gpu=0, action="return", code=999, times=0)
    rig.machine.inject(fault)
    look_again(rig)

    def tainted() -> dict[str, str]:
        return {
            name: d["taints"][0]["value"] for name, d in devices(rig).items() if d.get("taints")
        }

    wait_for("taints", tainted)
    assert {name[:6] for name in tainted()} == {"gpu-0-"}
    assert len(tainted()) == 25
    assert set(tainted().values()) == {"NVMLError"}
    rig.http.writes = []
    rig.restart()
    wait_for("a look at the slices", lambda: looked(rig))
    assert [m for m, _ in writes(rig) if m != "POST"] == [], "the server's time in a taint counts"
    rig.machine.clear_faults()
    look_again(rig)
    wait_for("none", lambda: not tainted())
