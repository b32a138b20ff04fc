"""MIG mode: pending where a reset is needed, at once from Hopper on, lost or kept at boot."""

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.machine import GpuSpec
from tests.sim.nvml.calls import create_at, device
from tests.sim.nvml.conftest import Start


def off(product: str) -> GpuSpec:
    return GpuSpec(product, mig=False)


def test_hopper_changes_at_once(start: Start) -> None:
    start(off("H100-80GB-HBM3"))
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


def test_ampere_waits_for_a_reset(start: Start) -> None:
    machine = start(off("A100-SXM4-40GB"))
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(device()) == [0, 1]
    pynvml.nvmlShutdown()  # who holds it keeps it from being reset
    machine.reset_gpu(0)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


def test_ampere_changes_at_once_where_the_driver_can_reset(start: Start) -> None:
    machine = start(off("A100-SXM4-40GB"))
    machine.configure(resets_gpus=True)
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


@pytest.mark.parametrize("product", ["A100-SXM4-40GB", "H100-80GB-HBM3"])
def test_a_gpu_in_use_keeps_its_mode(start: Start, product: str) -> None:
    machine = start(product)
    machine.configure(resets_gpus=True)
    instance = create_at(device(), 19, 0, 1)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.IN_USE
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 0]
    pynvml.nvmlGpuInstanceDestroy(instance)
    machine.start_process(0, 77)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.IN_USE
    machine.end_process(77)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.SUCCESS


@pytest.mark.parametrize("again", ["reboot", "reload_driver"])
def test_ampere_keeps_its_mode_and_hopper_loses_it(start: Start, again: str) -> None:
    machine = start("A100-SXM4-40GB", "H100-80GB-HBM3", init=False)
    getattr(machine, again)()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(device(0)) == [1, 1]
    assert pynvml.nvmlDeviceGetMigMode(device(1)) == [0, 0]
