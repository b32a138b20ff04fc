"""ResourceSlices: there while kube-scheduler allocates, written only when they were not true."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra import resourceslices
from dra.inventory import Allocator
from dra.kube.errors import ForbiddenError, KubeError, UnavailableError
from dra.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, MIG_NODES, NODES, RESOURCE_SLICES, Obj
from dra.kube.transport import KubeApi
from kubeletplugin import blocking
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from tests.kubeletplugin.conftest import A100, CRD
from tests.kubeletplugin.rig import DRIVER, Rig
from tests.waiting import wait_for

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def slices(rig: Rig) -> list[Obj]:
    """Those of the node, in the order of their names."""
    selector = f"spec.nodeName={rig.node},spec.driver={DRIVER}"
    found = rig.api.list(RESOURCE_SLICES, field_selector=selector).items
    return sorted(found, key=lambda s: str(s["metadata"]["name"]))


def devices(rig: Rig) -> dict[str, Obj]:
    return {d["name"]: d for s in slices(rig) for d in s["spec"].get("devices", [])}


def generations(rig: Rig) -> set[int]:
    return {s["spec"]["pool"]["generation"] for s in slices(rig)}


def condition(rig: Rig) -> Obj:
    """``SlicesPublished``, or an empty object."""
    found = rig.api.list(MIG_NODES, field_selector=f"metadata.name={rig.node}").items
    conditions = found[0].get("status", {}).get("conditions", []) if found else []
    return next((c for c in conditions if c["type"] == "SlicesPublished"), {})


def published(rig: Rig) -> bool:
    return condition(rig).get("status") == "True"


def writes(rig: Rig) -> list[tuple[str, str]]:
    """Writes of slices that are no dry runs."""
    return [(method, path) for method, path in rig.http.writes if path.startswith(SLICES)]


def idle(rig: Rig) -> bool:
    """Whether the publisher has taken every wish."""
    assert rig.daemon is not None
    publisher = rig.daemon._slice_publisher
    return not publisher._wake.is_set() and not publisher._disturbed


def looked(rig: Rig) -> bool:
    """Whether the publisher has compared the slices with what they should be."""
    assert rig.daemon is not None
    return rig.daemon._slice_publisher._last is not None


def spoil(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], object]
) -> None:
    """From now on the server's answers to writes of slices are changed on the way."""
    call = type(rig.http).call

    def spoilt(self: Any, method: str, path: str, **more: Any) -> Obj:
        answer = call(self, method, path, **more)
        if method in {"POST", "PUT"} and path.startswith(SLICES):
            change(answer["spec"])
        return answer

    monkeypatch.setattr(type(rig.http), "call", spoilt)


def look_again(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon._hardware.poll()


@pytest.fixture
def scheduled(make_rig: Callable[..., Rig]) -> Rig:
    """A node with two A100 that kube-scheduler allocates."""
    rig = make_rig()
    rig.allocator = Allocator.SCHEDULER
    rig.start()
    wait_for("slices", lambda: published(rig))
    return rig


@contextmanager
def server(*flags: str) -> Iterator[Path]:
    """An API server of one's own; its kubeconfig."""
    folder = Path(tempfile.mkdtemp(prefix="kp-"))
    path = folder / "kubeconfig"
    command = [sys.executable, "-m", "sim", "apiserver", "--port", "0", *flags]
    process = subprocess.Popen([*command, "--kubeconfig-out", str(path)], stdout=subprocess.DEVNULL)
    try:
        wait_for("the API server", path.exists)
        api = KubeApi.connect(str(path), user_agent="tests/1")
        api.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(CRD.read_text()))
        api.close()
        yield path
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@contextmanager
def node_at(kubeconfig: Path, folder: Path) -> Iterator[Rig]:
    """A node of another API server."""
    machine = Machine.create(folder / "hw", [GpuSpec(A100)])
    rig = Rig(machine, folder, kubeconfig)
    rig.create_node()
    rig.allocator = Allocator.SCHEDULER
    try:
        yield rig
    finally:
        rig.close()


def test_every_placement_is_published_and_belongs_to_the_node(scheduled: Rig) -> None:
    assert len(devices(scheduled)) == 50
    assert scheduled.mignode()["spec"]["allocator"] == "scheduler"
    node = scheduled.api.get(NODES, scheduled.node)
    for index, found in enumerate(slices(scheduled)):
        assert found["metadata"]["name"] == f"{index:04}-{DRIVER}-{scheduled.node}"
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])
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
    wait_for("the slice in the MigNode", lambda: rig.published_slices() != [])
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
    assert len(scheduled.prepared(ref)) == 1
    assert scheduled.slices() == [(1, "3g.20gb", 4, True)]


def test_what_pods_do_changes_no_slice(scheduled: Rig) -> None:
    rig = scheduled
    rig.http.writes = []
    ref = rig.claim("gpu-1-mig-2g10gb-14-2")
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    wait_for("no slice", lambda: rig.published_slices() == [])
    wait_for("the wishes to be taken", lambda: idle(rig))
    rig.stop()
    assert writes(rig) == []


def test_a_foreign_instance_takes_its_room_away_until_it_is_gone(scheduled: Rig) -> None:
    rig = scheduled
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


def test_a_slice_that_cannot_be_removed_is_withheld(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scheduled
    ref = rig.claim("gpu-0-mig-3g20gb-9-4")
    rig.prepared(ref)
    monkeypatch.setattr(blocking, "SETTLE_SECONDS", 0.5)
    rig.machine.inject(
        Fault(id="busy", function="nvmlGpuInstanceDestroy", action="return", code=19, times=0)
    )
    assert rig.unprepare(ref) == ""
    wait_for("less room", lambda: "gpu-0-mig-3g20gb-9-4" not in devices(rig))
    assert "gpu-0-mig-4g20gb-5-0" in devices(rig)
    rig.machine.clear_faults()
    assert rig.daemon is not None
    rig.daemon._janitor.tend(everything=True)
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


def test_slices_that_kubelet_deletes_come_back(scheduled: Rig) -> None:
    rig = scheduled
    before = {s["metadata"]["uid"] for s in slices(rig)}
    for found in slices(rig):
        rig.api.delete(RESOURCE_SLICES, found["metadata"]["name"])
    wait_for("them", lambda: len(devices(rig)) == 50)
    assert before.isdisjoint(s["metadata"]["uid"] for s in slices(rig))


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


def test_a_rewriting_that_broke_off_is_finished(scheduled: Rig) -> None:
    """Slices of two generations are no pool; the next start makes them one."""
    rig = scheduled
    rig.stop()
    (first, _) = slices(rig)
    first["spec"]["pool"]["generation"] = 7
    first["spec"]["sharedCounters"].pop()
    rig.api.replace(RESOURCE_SLICES, first)
    rig.start()
    wait_for("one generation", lambda: generations(rig) == {8})


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
    rig.allocator = Allocator.CONTROLLER
    rig.start()
    assert slices(rig) == []
    assert rig.api.get(RESOURCE_SLICES, f"other-{rig.node}")


def test_back_with_the_controller_the_slices_go_before_the_mignode_says_so(
    scheduled: Rig,
) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = Allocator.CONTROLLER
    rig.http.writes = []
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"
    assert condition(rig) == {}
    order = [
        "slice" if path.startswith(SLICES) else "node"
        for method, path in rig.http.writes
        if path.startswith(SLICES) or (method == "PUT" and path.endswith(f"mignodes/{rig.node}"))
    ]
    assert order == ["slice", "slice", "node"]


def test_without_a_look_at_old_slices_the_controller_allocates_nothing(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = Allocator.CONTROLLER

    def refuse(method: str, path: str) -> KubeError | None:
        return UnavailableError(f"{method} {path}") if path.startswith(SLICES) else None

    rig.http.refuse = refuse
    rig.start(ready=False)
    assert rig.daemon is not None
    publisher = rig.daemon._slice_publisher
    wait_for("an attempt", lambda: publisher._backoff.failures > 1)
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert slices(rig) == []


def test_a_role_without_slices_does_not_stop_the_controllers_mode(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.http.refuse = lambda _method, path: (
        ForbiddenError("no") if path.startswith(SLICES) else None
    )
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"


def test_the_mignode_says_so_before_the_first_slice_is_there(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"
    rig.stop()
    rig.allocator = Allocator.SCHEDULER
    rig.http.writes = []
    rig.start()
    wait_for("slices", lambda: published(rig))
    order = [
        "slice" if path.startswith(SLICES) else "node"
        for method, path in rig.http.writes
        if path.startswith(SLICES) or (method == "PUT" and path.endswith(f"mignodes/{rig.node}"))
    ]
    assert order[0] == "node"
    assert order.count("node") == 1
    assert "slice" in order


def test_a_refused_write_is_seen_in_the_mignode_and_tried_again(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.allocator = Allocator.SCHEDULER
    rig.http.refuse = lambda method, path: (
        ForbiddenError("slices are not for you") if (method, path) == ("POST", SLICES) else None
    )
    rig.start(ready=False)
    wait_for("the reason", lambda: condition(rig).get("reason") == "WriteFailed")
    assert "slices are not for you" in condition(rig)["message"]
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("slices", lambda: published(rig))


def test_with_the_gate_off_the_controller_allocates_and_everybody_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        server("--feature-gates", "DRAPartitionableDevices=false") as kubeconfig,
        node_at(kubeconfig, folder) as rig,
    ):
        with caplog.at_level(logging.ERROR):
            rig.start()
            wait_for("the reason", lambda: condition(rig).get("reason") == "GateOff")
        wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
        assert slices(rig) == []
        assert "DRAPartitionableDevices" in condition(rig)["message"]
        assert [m for m, _ in writes(rig) if m == "DELETE"] == [], "nothing was there to withdraw"
        assert "--allocator=scheduler is not possible" in caplog.text
        assert rig.prepared(rig.claim("gpu-0-mig-3g20gb-9-4"))


def test_fields_that_are_dropped_later_withdraw_what_is_there(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several API servers one may have the gate off, and a dry run may meet another."""
    rig = scheduled
    spoil(rig, monkeypatch, lambda spec: spec.pop("sharedCounters", None))
    for found in slices(rig):
        rig.api.delete(RESOURCE_SLICES, found["metadata"]["name"])
    wait_for("the reason", lambda: condition(rig).get("reason") == "GateOff")
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert slices(rig) == []


def test_taints_that_are_dropped_later_leave_the_gpu_out(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scheduled
    spoil(
        rig,
        monkeypatch,
        lambda spec: [d.pop("taints", None) for d in spec.get("devices", [])],
    )
    function = "nvmlDeviceGetGpuInstances"
    fault = Fault(id="x", function=function, gpu=0, action="return", code=999, times=0)
    rig.machine.inject(fault)
    look_again(rig)
    wait_for("the other GPU alone", lambda: {n[:6] for n in devices(rig)} == {"gpu-1-"})
    assert rig.mignode()["spec"]["allocator"] == "scheduler"


def test_what_exceeds_a_limit_is_left_to_the_controller(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resourceslices, "MAX_COUNTERS", 3)
    rig = make_rig()
    rig.allocator = Allocator.SCHEDULER
    rig.start()
    wait_for("the reason", lambda: condition(rig).get("reason") == "LimitExceeded")
    assert "at most 3 are allowed" in condition(rig)["message"]
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert slices(rig) == []


def test_without_taints_a_gpu_out_of_service_is_left_out(folder: Path) -> None:
    with (
        server("--feature-gates", "DRADeviceTaints=false") as kubeconfig,
        node_at(kubeconfig, folder) as rig,
    ):
        rig.start()
        wait_for("slices", lambda: len(devices(rig)) == 25)
        function = "nvmlDeviceGetGpuInstances"
        rig.machine.inject(Fault(id="x", function=function, action="return", code=999, times=0))
        look_again(rig)
        wait_for("no device", lambda: devices(rig) == {})
        assert len(slices(rig)) == 1
        rig.machine.clear_faults()
        look_again(rig)
        wait_for("them", lambda: len(devices(rig)) == 25)
