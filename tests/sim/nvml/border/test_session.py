"""Initialisation, and state that outlives processes and is shared by them."""

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
from sim.nvml.session import Session
from tests.sim.nvml.calls import create_at, device, gpu_instances, refused
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


def test_handles_do_not_survive_the_session(a100: Machine) -> None:
    gpu = device()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    with refused(Return.INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetMinorNumber(gpu)


def test_a_function_that_the_library_lacks_is_not_found(a100: Machine) -> None:
    with refused(Return.FUNCTION_NOT_FOUND):
        pynvml.nvmlDeviceGetTemperature(device(), 0)


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


def test_reloading_the_driver_drops_instances_and_keeps_the_boot_id(a100: Machine) -> None:
    a100.create_slice(0, "1g.5gb")
    before = a100.state().boot_id
    pynvml.nvmlShutdown()
    a100.reload_driver()
    assert a100.gpu().gpu_instances == []
    assert a100.state().boot_id == before


def test_mutations_are_recorded_and_reads_only_when_asked(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    with refused(Return.INSUFFICIENT_RESOURCES):
        create_at(device(), 19, 0, 1)
    assert a100.calls() == []
    a100.configure(record_calls=True)
    pynvml.nvmlGpuInstanceGetInfo(instance)
    assert [(c.function, c.code, c.gpu == a100.gpu().uuid) for c in a100.mutations()] == [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 0, True),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, True),
    ]
    assert [(c.function, c.mutation) for c in a100.calls()] == [("nvmlGpuInstanceGetInfo", False)]


def test_handles_of_instances_do_not_pile_up(a100: Machine) -> None:
    session = Session(a100.directory)
    gpu = a100.gpu(0)
    card, *instances = [session.handle("device", gpu)] + [
        session.handle("gpu-instance", gpu, key) for key in range(1, 2001)
    ]
    assert len(session._targets) == len(session._addresses) <= 1000
    assert session.target(card).kind == "device"
    assert session.target(instances[-1]).key == 2000
    assert session.handle("gpu-instance", gpu, 1) not in instances


# -- clients of the driver: what each holds, and what is refused meanwhile


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
