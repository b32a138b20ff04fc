"""Files of the simulated host: what the kernel, the driver and its packages show under / .

Device nodes are plain files: making real ones needs privileges, and the simulated driver needs
none. Only the capability files of MIG instances change while the machine runs.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from threading import get_ident

from sim.nvml import driverfiles
from sim.nvml.products import Product
from sim.nvml.state import Gpu, MachineState, replace_file

MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": 509}
CAPS_MAJOR = 237
DRM_MAJOR = 226
_HOSTS_PIDS = 4026531836
MAX_GPUS = 32
MAX_COMPUTE_INSTANCES = 8
_GPU_MINORS = 135
_INSTANCE_MINORS = 9
_FIRST_INSTANCE_MINOR = 3


def gpu_instance_minor(gpu_minor: int, gpu_instance: int) -> int:
    """Capability minor of a GPU instance, as the driver numbers them."""
    return _FIRST_INSTANCE_MINOR + _GPU_MINORS * gpu_minor + _INSTANCE_MINORS * gpu_instance


def compute_instance_minor(gpu_minor: int, gpu_instance: int, compute_instance: int) -> int:
    """Capability minor of a compute instance, as the driver numbers them."""
    return gpu_instance_minor(gpu_minor, gpu_instance) + 1 + compute_instance


def build_host(root: Path, state: MachineState, products: dict[str, Product]) -> None:
    """Makes the host's files for a machine that has just booted."""
    for stale in ("proc", "dev", "sys", "run/simulated-driver"):
        shutil.rmtree(root / stale, ignore_errors=True)
    _build_proc(root / "proc", state, products)
    _build_dev(root / "dev", state)
    if not state.makes_nodes:
        remove_nodes(root, state)
    _build_sys(root, state, products)
    driverfiles.install(
        root,
        state.library_version or state.driver_version,
        libraries="libraries" not in state.missing,
    )
    for name in ("var/lib/kubelet/plugins_registry", "var/run/cdi"):
        (root / name).mkdir(parents=True, exist_ok=True)
    sync_capabilities(root, state)


def sync_capabilities(root: Path, state: MachineState) -> None:
    """Makes the capability files say which MIG instances live."""
    if "capabilities" in state.missing:
        shutil.rmtree(root / "proc/driver/nvidia/capabilities", ignore_errors=True)
        return
    _build_global_capabilities(root / "proc")
    for gpu in state.gpus:
        folder = root / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig"
        wanted = _capabilities(gpu)
        folder.mkdir(parents=True, exist_ok=True)
        present = {str(p.parent.relative_to(folder)) for p in folder.rglob("access")}
        for gone in sorted(present - wanted.keys(), reverse=True):
            shutil.rmtree(folder / gone, ignore_errors=True)
        for new in sorted(wanted.keys() - present):
            (folder / new).mkdir(parents=True, exist_ok=True)
            _write_access(folder / new / "access", wanted[new], mode=0o444)


def _capabilities(gpu: Gpu) -> dict[str, int]:
    minors: dict[str, int] = {}
    for instance in gpu.gpu_instances:
        name = f"gi{instance.id}"
        minors[name] = gpu_instance_minor(gpu.minor, instance.id)
        for compute in instance.compute_instances:
            minors[f"{name}/ci{compute.id}"] = compute_instance_minor(
                gpu.minor, instance.id, compute.id
            )
    return minors


def _write_access(path: Path, minor: int, *, mode: int) -> None:
    # The driver prints the mode in decimal: 292 is 0444.
    content = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
    replace_file(path, content.encode())


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def _build_proc(proc: Path, state: MachineState, products: dict[str, Product]) -> None:
    _write(proc / "sys/kernel/random/boot_id", f"{state.boot_id}\n")
    _build_devices(proc, state)
    # Whoever looks is root, in the pid namespace in which NVML names processes to it.
    _write(proc / "self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
    (proc / "self/ns").mkdir()
    seen = state.variants.processes == "seen"
    (proc / "self/ns/pid").symlink_to(f"pid:[{_HOSTS_PIDS if seen else _HOSTS_PIDS + 1000}]")
    driver = proc / "driver/nvidia"
    _write(
        driver / "version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {state.driver_version}  simulated\n",
    )
    _show_parameters(proc.parent, state)
    for gpu in state.gpus:
        _write(
            driver / "gpus" / gpu.pci_bus_id.lower()[4:] / "information",
            f"Model: \t\t {products[gpu.product].name}\n"
            f"GPU UUID: \t {gpu.uuid}\n"
            f"Bus Location: \t {gpu.pci_bus_id.lower()[4:]}\n"
            f"Device Minor: \t {gpu.minor}\n",
        )
    _write(proc / "driver/nvidia-caps/mig-minors", _mig_minors())


def _build_devices(proc: Path, state: MachineState) -> None:
    majors = {
        **MAJORS,
        "nvidia-caps-imex-channels": CAPS_MAJOR - 1,
        "nvidia-caps": CAPS_MAJOR,
    }
    if "uvm" in state.missing:
        del majors["nvidia-uvm"]
    if "capabilities" in state.missing:
        del majors["nvidia-caps"]
    lines = "".join(f"{major} {name}\n" for name, major in majors.items())
    content = f"Character devices:\n  1 mem\n  5 /dev/tty\n{lines}\nBlock devices:\n  7 loop\n"
    proc.mkdir(parents=True, exist_ok=True)
    replace_file(proc / "devices", f"{content}259 blkext\n".encode())


def sync_missing(root: Path, state: MachineState) -> None:
    """Makes the files of drivers and modules be there that are, and the others not."""
    _build_devices(root / "proc", state)
    if "libraries" in state.missing:
        driverfiles.remove_libraries(root)
    else:
        driverfiles.install(root, state.library_version or state.driver_version)
    sync_capabilities(root, state)


def _build_global_capabilities(proc: Path) -> None:
    for name, minor, mode in (("config", 1, 0o400), ("monitor", 2, 0o444)):
        path = proc / "driver/nvidia/capabilities/mig" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_access(path, minor, mode=mode)


@functools.cache
def _mig_minors() -> str:
    lines = ["config 1", "monitor 2"]
    for gpu in range(MAX_GPUS):
        for gi in range(_GPU_MINORS // _INSTANCE_MINORS):
            lines.append(f"gpu{gpu}/gi{gi}/access {gpu_instance_minor(gpu, gi)}")
            lines.extend(
                f"gpu{gpu}/gi{gi}/ci{ci}/access {compute_instance_minor(gpu, gi, ci)}"
                for ci in range(MAX_COMPUTE_INSTANCES)
            )
    return "\n".join(lines) + "\n"


def _build_dev(dev: Path, state: MachineState) -> None:
    make_nodes(dev.parent, state)
    for name in ("nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
        _write(dev / name, "")


def make_nodes(root: Path, state: MachineState) -> None:
    """Makes the nodes that NVML opens, where they are not there."""
    names = ["nvidiactl", *(f"nvidia{gpu.minor}" for gpu in state.gpus)]
    # The kernel makes no node for an instance's capability; only these two exist after boot.
    names += ["nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"]
    for name in names:
        if not (root / "dev" / name).exists():
            _write(root / "dev" / name, "")


def remove_nodes(root: Path, state: MachineState) -> None:
    """Takes all of NVIDIA's device nodes off the host."""
    _show_parameters(root, state)
    for node in (root / "dev").glob("nvidia*"):
        if node.is_dir():
            shutil.rmtree(node)
        else:
            node.unlink()


def _show_parameters(root: Path, state: MachineState) -> None:
    """The parameters of the module nvidia."""
    text = f"ModifyDeviceFiles: {int(state.makes_nodes)}\nDeviceFileUID: 0\nDeviceFileGID: 0\n"
    _write(root / "proc/driver/nvidia/params", text)


def _build_sys(root: Path, state: MachineState, products: dict[str, Product]) -> None:
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    for position, gpu in enumerate(state.gpus):
        address = gpu.pci_bus_id.lower()[4:]
        bridge = f"pci{address[:5]}{2 * position:02x}"
        device = root / "sys/devices" / bridge / f"{address[:5]}{2 * position:02x}:01.0" / address
        _write(device / "numa_node", f"{position % 2}\n")
        _write(device / "vendor", "0x10de\n")
        if any("+gfx" in profile.name for profile in products[gpu.product].gi_profiles):
            _write(device / f"drm/card{position}/dev", f"{DRM_MAJOR}:{position}\n")
            _write(device / f"drm/renderD{128 + position}/dev", f"{DRM_MAJOR}:{128 + position}\n")
        (links / address).symlink_to(
            Path("../../../devices") / device.relative_to(root / "sys/devices")
        )


def show_pid_namespace(root: Path, *, hidden: bool) -> None:
    """The node's first process is in the caller's pid namespace, or, `hidden`, in another."""
    link = root / "proc/1/ns/pid"
    link.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same at this moment.
    new = link.with_name(f".pid.{os.getpid()}.{get_ident()}")
    new.symlink_to("pid:[1]" if hidden else Path("/proc/self/ns/pid").readlink())
    new.replace(link)


def show_opener(root: Path, *, pid: int, name: str, minor: int) -> None:
    """A process that has a GPU's node open, as the host's /proc shows it."""
    process = root / f"proc/{pid}"
    (process / "fd").mkdir(parents=True)
    _write(process / "comm", f"{name[:15]}\n")
    (process / "fd/7").symlink_to(f"/dev/nvidia{minor}")


def hide_process(root: Path, pid: int) -> None:
    """The process is gone."""
    shutil.rmtree(root / f"proc/{pid}", ignore_errors=True)
