"""ResourceSlices: there while kube-scheduler allocates, written only when they were not true."""

from __future__ import annotations

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
    look_again,
    looked,
    published,
    slices,
    writes,
)
from tests.kubeletplugin.helpers.rig import DRIVER, Rig


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


# -- ResourceSlices that others delete, edit or add, or that were written in part


def test_slices_that_somebody_edits_or_adds_are_put_right(scheduled: Rig) -> None:
    rig = scheduled
    first, second = slices(rig)
    pool = {"name": rig.node, "generation": 1, "resourceSliceCount": 2}
    stray = {
        "metadata": {"name": f"stray-{rig.node}"},
        "spec": {"driver": DRIVER, "nodeName": rig.node, "pool": pool, "devices": []},
    }
    rig.api.create(RESOURCE_SLICES, stray)
    wait_for("its end", lambda: len(slices(rig)) == 2)
    edit = {"spec": {"devices": second["spec"]["devices"][:3]}}
    rig.api.patch(RESOURCE_SLICES, second["metadata"]["name"], edit)
    wait_for("all devices", lambda: len(devices(rig)) == 50)
    assert len(generations(rig)) == 1
    assert first["spec"]["sharedCounters"]


def test_a_change_within_one_slice_keeps_the_generation(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    (_, second) = slices(rig)
    second["spec"]["devices"].pop()
    rig.api.replace(RESOURCE_SLICES, second)
    rig.http.writes = []
    rig.start()
    wait_for("all devices", lambda: len(devices(rig)) == 50)
    wait_for("slices", lambda: published(rig))
    assert generations(rig) == {1}
    assert [path for method, path in writes(rig) if method == "PUT"] == [
        f"{SLICES}/{second['metadata']['name']}"
    ]


def test_another_drivers_slices_stay(scheduled: Rig) -> None:
    rig = scheduled
    pool = {"name": rig.node, "generation": 1, "resourceSliceCount": 1}
    other = {
        "metadata": {"name": f"other-{rig.node}"},
        "spec": {"driver": "gpu.example.com", "nodeName": rig.node, "pool": pool, "devices": []},
    }
    rig.api.create(RESOURCE_SLICES, other)
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER
    rig.start()
    assert devices(rig) == {}
    assert rig.api.get(RESOURCE_SLICES, f"other-{rig.node}")
