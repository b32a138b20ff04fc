"""Looks at GPUs that are asked for, and those that what was read back makes needless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dra.common.resources import NODES
from kubeletplugin import times
from kubeletplugin.claims.specs import Specs
from kubeletplugin.gpus import reader
from sim.nvml.products import OTHERS
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import Rig

A, B = ("uid-a", "gpu-0"), ("uid-b", "gpu-0")


def _label(rig: Rig, value: str | None) -> None:
    named = {"nvidia.com/mig.config": value}
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": named}})


def test_a_look_at_a_gpu_on_which_somebody_works_is_made_afterwards(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "POLL_SECONDS", 3600.0)
    rig = make_rig()
    rig.start()
    assert rig.daemon is not None
    hardware, gpu = rig.daemon.hardware, rig.machine.gpu(0).uuid
    unit = hardware.unit(gpu)
    assert unit is not None
    with unit.lock:
        rig.machine.create_slice(0, "1g.5gb", start=4)
        hardware.look_soon(gpu)
        _label(rig, "all-disabled")
        wait_for("the label", lambda: unit.conflict is not None)
        assert unit.seen is not None
        assert not unit.seen.instances
    wait_for("the instance", lambda: unit.seen is not None and unit.seen.instances)
    wait_for(
        "the conflict",
        lambda: rig.mignode()["status"]["gpus"][0].get("reason") == "MIGManagerActive",
    )


@pytest.mark.parametrize("variants", [OTHERS["no-events-of-instances"]], ids=["no events"])
def test_what_is_prepared_during_a_look_is_published_after_it(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "POLL_SECONDS", 3600.0)
    rig = make_rig()
    rig.start()
    assert rig.daemon is not None
    hardware = rig.daemon.hardware
    unit = hardware.named("gpu-0")

    def look() -> None:
        with unit.lock.if_free():
            hardware.observe(unit)

    looking = threading.Thread(target=look)
    seen, prepared = threading.Event(), threading.Event()
    describe, write = reader.describe, Specs.write

    def wait_before_it_is_shown(*arguments: Any, **more: Any) -> Any:
        gpu = describe(*arguments, **more)
        if threading.current_thread() is looking:
            seen.set()
            assert prepared.wait(PATIENCE)
        return gpu

    def look_first(*arguments: Any) -> None:
        if not seen.is_set():
            looking.start()
            assert seen.wait(PATIENCE)
        write(*arguments)

    wait_for("the first look", lambda: rig.has_looked() and not unit.lock.is_held)
    monkeypatch.setattr(reader, "describe", wait_before_it_is_shown)
    monkeypatch.setattr(Specs, "write", look_first)
    rig.prepare(rig.claim("gpu-0-mig-1g5gb-19-4"))
    wait_for("what was read back to be taken", lambda: not unit.read_back)
    prepared.set()
    looking.join()
    wait_for("the slice", lambda: rig.published_slices() == [("gpu-0", "1g.5gb", 4, "prepared")])
