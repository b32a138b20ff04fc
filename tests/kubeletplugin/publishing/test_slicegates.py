"""ResourceSlices where the API server drops fields: feature gates, and limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.inventory import AllocatorKind
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, UnavailableError
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.conftest import api_server
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    condition,
    devices,
    look_again,
    published,
    slices,
    spoil,
    writes,
)
from tests.kubeletplugin.helpers.rig import A100, Rig


@contextmanager
def node_at(kubeconfig: Path, folder: Path) -> Iterator[Rig]:
    """A node of another API server."""
    machine = Machine.create(folder / "hw", [GpuSpec(A100)])
    rig = Rig(machine, folder, kubeconfig)
    rig.create_node()
    rig.allocator = AllocatorKind.SCHEDULER
    try:
        yield rig
    finally:
        rig.close()


def test_with_the_gate_off_the_controller_allocates_and_everybody_is_told(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        api_server(tmp_path, "--feature-gates", "DRAPartitionableDevices=false") as kubeconfig,
        node_at(kubeconfig, folder) as rig,
    ):
        with caplog.at_level(logging.ERROR):
            rig.start()
            wait_for("the reason", lambda: condition(rig).get("reason") == "GateOff")
        wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
        assert devices(rig) == {}
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
    assert devices(rig) == {}


def test_taints_that_are_dropped_later_leave_the_gpu_out(
    scheduled: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = scheduled
    spoil(rig, monkeypatch, lambda spec: [d.pop("taints", None) for d in spec.get("devices", [])])
    function = "nvmlDeviceGetGpuInstances"
    fault = Fault(id="x", function=function, gpu=0, action="return", code=999, times=0)
    rig.machine.inject(fault)
    look_again(rig)
    wait_for("the other GPU alone", lambda: {n[:6] for n in devices(rig)} == {"gpu-1-"})
    assert rig.mignode()["spec"]["allocator"] == "scheduler"


def test_what_exceeds_a_limit_is_left_to_the_controller(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    call = type(rig.http).call

    def refusing(http: Any, method: str, path: str, **more: Any) -> Obj:
        is_write = method in {"POST", "PUT"} and path.startswith(SLICES)
        is_probe = (more.get("query") or {}).get("dryRun")
        if is_write and not is_probe and "sharedCounters" in more["body"]["spec"]:
            raise InvalidError("sharedCounters: must have at most 8 items", status=422)
        return call(http, method, path, **more)

    monkeypatch.setattr(type(rig.http), "call", refusing)
    rig.allocator = AllocatorKind.SCHEDULER
    rig.start()
    wait_for("the reason", lambda: condition(rig).get("reason") == "LimitExceeded")
    assert "must have at most 8 items" in condition(rig)["message"]
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert devices(rig) == {}


def test_without_taints_a_gpu_out_of_service_is_left_out(folder: Path, tmp_path: Path) -> None:
    with (
        api_server(tmp_path, "--feature-gates", "DRADeviceTaints=false") as kubeconfig,
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


# -- once kube-scheduler can allocate after all, the node is handed back to it


def test_back_with_the_controller_the_slices_go_before_the_mignode_says_so(
    scheduled: Rig,
) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER
    rig.http.writes = []
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"
    assert condition(rig) == {}
    order = [
        "slice" if path.startswith(SLICES) else "node"
        for method, path in rig.http.writes
        if (method == "DELETE" and path.startswith(SLICES))
        or (method == "PUT" and path.endswith(f"mignodes/{rig.node}"))
    ]
    assert order == ["slice", "slice", "node"]
    assert devices(rig) == {}


def test_without_a_look_at_old_slices_the_controller_allocates_nothing(scheduled: Rig) -> None:
    rig = scheduled
    rig.stop()
    rig.allocator = AllocatorKind.CONTROLLER

    refused: list[str] = []

    def refuse(method: str, path: str) -> KubeError | None:
        if not path.startswith(SLICES):
            return None
        refused.append(f"{method} {path}")
        return UnavailableError(refused[-1])

    rig.http.refuse = refuse
    rig.start(ready=False)
    assert rig.daemon is not None
    wait_for("attempts", lambda: len(refused) > 2)
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("the controller", lambda: rig.mignode()["spec"]["allocator"] == "controller")
    assert devices(rig) == {}


def test_a_role_without_slices_does_not_stop_the_controllers_mode(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.http.refuse = lambda _method, path: (
        ForbiddenError("no") if path.startswith(SLICES) else None
    )
    rig.start()
    assert rig.mignode()["spec"]["allocator"] == "controller"


def test_a_refused_write_is_seen_in_the_mignode_and_tried_again(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.allocator = AllocatorKind.SCHEDULER
    rig.http.refuse = lambda method, path: (
        ForbiddenError("slices are not for you") if (method, path) == ("POST", SLICES) else None
    )
    rig.start(ready=False)
    wait_for("the reason", lambda: condition(rig).get("reason") == "WriteFailed")
    assert "slices are not for you" in condition(rig)["message"]
    assert rig.mignode()["spec"]["allocator"] == "scheduler"
    rig.http.refuse = lambda _method, _path: None
    wait_for("slices", lambda: published(rig))
