"""The host's files follow the hardware, in the driver's formats."""

from pathlib import Path

import pynvml

from sim.nvml.machine import GpuSpec, Machine
from tests.sim.nvml.calls import create_at, device
from tests.sim.nvml.conftest import Start


def access_files(machine: Machine) -> set[str]:
    folder = machine.host_root / "proc/driver/nvidia/capabilities"
    return {str(path.relative_to(folder)) for path in folder.rglob("access")}


def fields(path: Path) -> dict[str, int]:
    pairs = (line.split(": ") for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}


def test_capability_files_come_and_go_with_the_instances(start: Start) -> None:
    machine = start(GpuSpec("A100-SXM4-40GB", minor=2))
    instance = create_at(device(), 19, 4, 1)
    assert access_files(machine) == {"gpu2/mig/gi11/access"}
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert access_files(machine) == {"gpu2/mig/gi11/access", "gpu2/mig/gi11/ci0/access"}
    pynvml.nvmlComputeInstanceDestroy(compute)
    assert access_files(machine) == {"gpu2/mig/gi11/access"}
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert access_files(machine) == set()


def test_an_access_file_has_the_minor_of_mig_minors_and_a_decimal_mode(start: Start) -> None:
    machine = start(GpuSpec("A100-SXM4-40GB", minor=6))
    proc = machine.host_root / "proc/driver"
    instance = create_at(device(), 19, 4, 1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    identifier = pynvml.nvmlGpuInstanceGetInfo(instance).id
    name = f"gpu6/mig/gi{identifier}/ci0/access"
    found = fields(proc / "nvidia/capabilities" / name)
    table = dict(
        line.split() for line in (proc / "nvidia-caps/mig-minors").read_text().splitlines()
    )
    assert found == {
        "DeviceFileMinor": int(table[f"gpu6/gi{identifier}/ci0/access"]),
        "DeviceFileMode": 292,
        "DeviceFileModify": 1,
    }
