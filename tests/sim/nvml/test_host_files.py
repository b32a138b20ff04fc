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


def test_sysfs_leads_from_the_pci_address_to_the_root(a100: Machine) -> None:
    address = pynvml.nvmlDeviceGetPciInfo(device()).busIdLegacy.lower()
    link = a100.host_root / "sys/bus/pci/devices" / address
    assert link.is_symlink()
    parts = link.resolve().relative_to(a100.host_root / "sys/devices").parts
    assert parts[0] == "pci0000:00"
    assert parts[-1] == address


def test_after_a_reboot_the_files_are_those_of_the_new_boot(a100: Machine) -> None:
    a100.create_slice(0, "1g.5gb")
    boot_id = a100.host_root / "proc/sys/kernel/random/boot_id"
    assert boot_id.read_text().strip() == a100.state().boot_id
    a100.reboot(minors=[1])
    assert boot_id.read_text().strip() == a100.state().boot_id
    assert access_files(a100) == set()
    assert (a100.host_root / "dev/nvidia1").is_file()
    assert not (a100.host_root / "dev/nvidia0").exists()


def test_a_foreign_slice_has_its_files_too(a100: Machine) -> None:
    made = a100.create_slice(0, "2g.10gb", start=2)
    assert len(access_files(a100)) == 2
    a100.destroy_compute_instances(0, made.gpu_instance)
    assert len(access_files(a100)) == 1
    a100.destroy_slice(0, made.gpu_instance)
    assert access_files(a100) == set()
