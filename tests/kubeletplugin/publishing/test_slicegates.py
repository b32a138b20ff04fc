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
from dra.kube.errors import InvalidError
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.conftest import api_server
from tests.kubeletplugin.helpers.publishedslices import (
    SLICES,
    condition,
    devices,
    look_again,
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


def test_without_taints_a_gpu_out_of_service_is_left_out(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        api_server(tmp_path, "--feature-gates", "DRADeviceTaints=false") as kubeconfig,
        node_at(kubeconfig, folder) as rig,
    ):
        rig.device_overhead = (("memory", "512Mi"),)
        rig.start()
        wait_for("slices", lambda: len(devices(rig)) == 25)
        assert "--device-overhead has no effect" in caplog.text, "a field of 1.37"
        function = "nvmlDeviceGetGpuInstances"
        rig.machine.inject(Fault(id="x", function=function, action="return", code=999, times=0))
        look_again(rig)
        wait_for("no device", lambda: devices(rig) == {})
        assert len(slices(rig)) == 1
        rig.machine.clear_faults()
        look_again(rig)
        wait_for("them", lambda: len(devices(rig)) == 25)
