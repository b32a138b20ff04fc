"""Metrics of NVML's calls and of waits for a GPU."""

from __future__ import annotations

import threading
from pathlib import Path

import pynvml
import pytest

import sim.nvml
from kubeletplugin.gpus.gpu import FifoLock
from kubeletplugin.nvml.errors import HangError, NvmlError
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from tests.helpers.scrape import Scrape, collected
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import Rig


def scrape(rig: Rig) -> Scrape:
    return collected(rig.telemetry.registry)


def test_nvml_calls_are_counted_by_code(rig: Rig) -> None:
    rig.machine.inject(
        Fault(
            id="full",
            function="nvmlDeviceCreateGpuInstanceWithPlacement",
            action="return",
            code=pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES,
        )
    )
    rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-0"))
    found = scrape(rig)
    create = "nvmlDeviceCreateGpuInstanceWithPlacement"
    name = "mig_dra_nvml_calls_total"
    assert found.value(name, operation=create, code="INSUFFICIENT_RESOURCES") == 1
    assert found.value(name, operation=create, code="SUCCESS") == 1
    assert found.value("mig_dra_nvml_call_duration_seconds_count", operation=create) == 2


def test_a_call_that_hangs_counts_as_that(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    sim.nvml.install(Machine.create(tmp_path / "hw", [GpuSpec("A30")]).directory)

    def session(seconds: float) -> Session:
        opened = Session(seconds=seconds, on_call=lambda name, code, _: heard.append((name, code)))
        opened.open()
        heard.clear()
        return opened

    release = threading.Event()

    def hangs() -> None:
        release.wait(PATIENCE)

    with pytest.raises(HangError):
        session(0.05).call(hangs, gpu="GPU-1")
    release.set()
    assert heard == [("hangs", "HANG")]

    def refuses() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_IN_USE)

    with pytest.raises(NvmlError):
        session(PATIENCE).call(refuses)
    assert heard == [("refuses", "IN_USE")]


def test_who_waits_for_a_gpu_is_heard_and_who_gets_it_at_once_is_not() -> None:
    waits: list[float] = []
    lock = FifoLock(waits.append)
    with lock:
        assert waits == []
        assert not lock.enter(0.05)
        assert len(waits) == 1
        assert waits[0] >= 0.05

        def wait() -> None:
            with lock:
                pass

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_for("the waiter", lambda: len(lock._waiting) == 1)
    waiter.join()
    assert len(waits) == 2


def test_the_lock_of_every_gpu_is_listened_to(rig: Rig) -> None:
    assert rig.daemon is not None
    count = "mig_dra_gpu_lock_wait_seconds_count"
    for unit in rig.daemon.hardware.units():
        with unit.lock:
            before = scrape(rig).value(count)
            assert not unit.lock.enter(0)
            assert scrape(rig).value(count) > before
