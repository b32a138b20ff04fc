"""Clients of the driver: what each holds, and what is refused meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import sim.nvml
from sim.nvml.cabi import RefusedError, Return
from sim.nvml.gpus.clients import HeldError
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import OTHERS
from tests.sim.nvml.calls import refused
from tests.sim.nvml.conftest import Start

A100, H100 = "A100-SXM4-40GB", "H100-80GB-HBM3"
# Takes GPU 0, says so, and waits to be killed.
HOLD = """
import sys, pynvml, sim.nvml
sim.nvml.install(sys.argv[1])
pynvml.nvmlInit()
pynvml.nvmlDeviceGetHandleByIndex(0)
print("held", flush=True)
sys.stdin.read()
"""


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


def test_a_process_that_is_killed_holds_nothing(start: Start) -> None:
    machine = start(A100, init=False)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(machine.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    assert [(c.pid, len(c.gpus)) for c in machine.clients()] == [(process.pid, 1)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert machine.clients() == []
    machine.reset_gpu(0)


def test_a_process_that_computes_holds_its_gpu_and_the_modules(start: Start) -> None:
    machine = start(A100, A100, init=False)
    machine.start_process(0, 4711)
    with pytest.raises(HeldError, match="compute process 4711"):
        machine.reset_gpu(0)
    with pytest.raises(HeldError, match="compute process 4711"):
        machine.reload_driver()
    machine.reset_gpu(1)


def test_the_mode_stays_pending_while_another_client_holds_the_gpu(start: Start) -> None:
    machine = start(GpuSpec(A100, mig=False), GpuSpec(H100, mig=False))
    for index in (0, 1):
        pynvml.nvmlDeviceGetHandleByIndex(index)
    assert machine.ask_mig_mode(0, enabled=True) == Return.IN_USE
    assert (machine.gpu(0).mig, machine.gpu(0).mig_pending) == (False, True)
    assert machine.ask_mig_mode(1, enabled=True) == Return.IN_USE
    machine.configure(variants=OTHERS["mode-refused-while-held"])
    with pytest.raises(RefusedError):
        machine.ask_mig_mode(1, enabled=True)
    pynvml.nvmlShutdown()
    for index in (0, 1):
        assert machine.ask_mig_mode(index, enabled=True) == Return.SUCCESS
        assert machine.gpu(index).mig


def mapped(machine: Machine) -> list[str]:
    """What this process has mapped of a machine's library; those of earlier tests stay mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ours = f"{machine.directory}/"
    return [line.partition("/")[2] for line in lines if "libnvidia-ml.so" in line and ours in line]


def test_a_process_keeps_the_library_that_it_began_with(start: Start) -> None:
    machine = start(A100)
    pynvml.nvmlShutdown()
    machine.upgrade_driver("999.9.9")
    assert machine.state().driver_version == "999.9.9"
    assert [line.endswith("(deleted)") for line in mapped(machine)] == [True]
    for _ in range(2):
        with refused(Return.LIB_RM_VERSION_MISMATCH):
            pynvml.nvmlInit()
    sim.nvml.install(machine.directory)
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "999.9.9"
    assert [line.rpartition("/")[2] for line in mapped(machine)] == ["libnvidia-ml.so.999.9.9"]


def test_new_files_under_old_modules_are_for_new_processes_only(start: Start) -> None:
    machine = start(A100)
    machine.install_driver_files("999.9.9")
    pynvml.nvmlInit()
    sim.nvml.install(machine.directory)
    with refused(Return.LIB_RM_VERSION_MISMATCH):
        pynvml.nvmlInit()
