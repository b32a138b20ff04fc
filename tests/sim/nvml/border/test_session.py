"""Initialisation, and state that outlives processes and is shared by them."""

from __future__ import annotations

import os
import subprocess
import sys

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.gpus.clients import HeldError
from sim.nvml.machine import Machine
from tests.sim.nvml.calls import device, gpu_instances, refused
from tests.sim.nvml.conftest import Start

OTHER_PROCESS = """
import sys, pynvml
from sim.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
"""


def other_process(machine: Machine, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS + code, str(machine.directory)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_nothing_works_before_init_and_after_the_last_shutdown(start: Start) -> None:
    start("A30", init=False)
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    gpu = device()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetMinorNumber(gpu) == 0
    pynvml.nvmlShutdown()
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlDeviceGetMinorNumber(gpu)
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlShutdown()


def test_a_slice_made_by_another_process_is_seen_at_once(a100: Machine) -> None:
    assert gpu_instances(device(), 9) == []
    identifier = other_process(
        a100,
        "gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)\n"
        "print(pynvml.nvmlGpuInstanceGetInfo(gi).id)",
    )
    (instance,) = gpu_instances(device(), 9)
    assert pynvml.nvmlGpuInstanceGetInfo(instance).id == int(identifier)
    pynvml.nvmlGpuInstanceDestroy(instance)
    left = other_process(a100, "print(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 9))")
    assert left == "2"


def test_a_reboot_drops_instances_processes_and_events_and_changes_the_boot_id(
    a100: Machine,
) -> None:
    made = a100.create_slice(0, "1g.5gb")
    a100.start_process(0, 42, gpu_instance=made.gpu_instance)
    a100.raise_event(0, 79)
    before = a100.state().boot_id
    a100.reboot(minors=[3])
    assert a100.state().boot_id != before
    assert a100.gpu().gpu_instances == []
    assert a100.gpu().processes == []
    assert a100.state().events == []
    assert pynvml.nvmlDeviceGetMinorNumber(device()) == 3


# -- clients of the driver: what each holds, and what is refused meanwhile


A100, H100 = "A100-SXM4-40GB", "H100-80GB-HBM3"


def held(machine: Machine) -> list[int]:
    """Indexes of the GPUs that clients hold."""
    uuids = [gpu.uuid for gpu in machine.state().gpus]
    return sorted(uuids.index(uuid) for c in machine.clients() for uuid in c.gpus)


def test_nvml_holds_the_module_and_from_its_handle_on_a_gpu(start: Start) -> None:
    machine = start(A100, A100, init=False)
    assert machine.clients() == []
    pynvml.nvmlInit()
    assert held(machine) == []
    machine.reset_gpu(1)
    pynvml.nvmlDeviceGetHandleByIndex(1)
    assert held(machine) == [1]
    machine.reset_gpu(0)
    with pytest.raises(HeldError, match=f"process {os.getpid()}"):
        machine.reset_gpu(1)
    pynvml.nvmlShutdown()
    assert machine.clients() == []
    machine.reset_gpu(1)
