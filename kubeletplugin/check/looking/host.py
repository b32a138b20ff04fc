"""Files of the host that containers with a slice need: device numbers, nodes, libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from kubeletplugin.check.items import Item
from kubeletplugin.check.notebook import Notebook
from kubeletplugin.check.report import Gpu, Instance
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.caps import CAPS, character_majors, instance_capabilities
from kubeletplugin.host.driver.devicenodes import gpu_node
from kubeletplugin.host.driver.driverversions import kernel_module
from kubeletplugin.host.driver.hooks import AUTO, NEVER, find_hook
from kubeletplugin.host.driver.libraries.insideroot import inside
from kubeletplugin.host.driversearch import DriverSearch, missing_libraries
from kubeletplugin.host.roots import Roots

_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_LOAD = "load the NVIDIA driver's modules (modprobe nvidia nvidia-uvm), or install the driver"


def examine(
    notebook: Notebook,
    roots: Roots,
    *,
    search: DriverSearch,
    driver_version: str,
    gpus: Iterable[Gpu],
) -> None:
    """Capabilities, device nodes, driver files and hooks."""
    _capabilities(notebook, roots)
    _device_nodes(notebook, roots, gpus)
    _libraries(notebook, search, driver_version)
    _hook(notebook, roots, search.hook)


def _capabilities(notebook: Notebook, roots: Roots) -> None:
    item = Item.CAPABILITIES
    try:
        major = character_majors(roots).get(CAPS)
    except HostError as error:
        notebook.missing(item, str(error), "mount the host's / and name it by --host-root")
        return
    minors = _numbers(roots)
    present = [
        f"{name}: {text}"
        for name in ("config", "monitor")
        if (text := _read(roots, f"{_CAPABILITIES}/mig/{name}"))
    ]
    notebook.fact(item, f"major of {CAPS}: {major}", *present, *sorted(_as_numbered(minors)))
    if major is None or not minors:
        what = f"/proc/devices has no {CAPS}" if major is None else f"there is no {_MIG_MINORS}"
        notebook.missing(item, f"{what}: the driver shows no MIG capabilities", _LOAD)
        return
    notebook.ok(item, f"{CAPS} has major {major}, {len(minors)} minors in {_MIG_MINORS}")


def with_minors(roots: Roots, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs with the capability minors of their instances, as /proc has them."""
    return tuple(
        replace(gpu, instances=tuple(_with_minors(roots, gpu, i) for i in gpu.instances))
        for gpu in gpus
    )


def _with_minors(roots: Roots, gpu: Gpu, instance: Instance) -> Instance:
    found: list[int] = []
    for ci_id, _ in instance.compute_instances:
        try:
            both = instance_capabilities(roots, gpu_minor=gpu.minor, gi_id=instance.id, ci_id=ci_id)
        except HostError:
            continue
        found += (capability.minor for capability in both)
    return replace(instance, capability_minors=tuple(dict.fromkeys(found)))


def _numbers(roots: Roots) -> dict[str, int]:
    """mig-minors: name of a capability to minor number."""
    pairs = (line.rsplit(maxsplit=1) for line in _read(roots, _MIG_MINORS).splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}  # noqa: PLR2004


def _as_numbered(minors: dict[str, int]) -> set[str]:
    """Answer in words whether the simulator's rule for minors holds."""
    rule = re.compile(r"gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access")
    others = [
        name
        for name, minor in minors.items()
        if (m := rule.fullmatch(name))
        and minor != 3 + 135 * int(m[1]) + 9 * int(m[2]) + (1 + int(m[3]) if m[3] else 0)
    ]
    if not minors:
        return set()
    return {f"minor is 3+135*gpu+9*gi(+1+ci): {'no, not ' + others[0] if others else 'yes'}"}


def _device_nodes(notebook: Notebook, roots: Roots, gpus: Iterable[Gpu]) -> None:
    item = Item.DEVICE_NODES
    try:
        majors = character_majors(roots)
    except HostError as error:
        notebook.missing(item, str(error), "mount the host's / and name it by --host-root")
        return
    named = {name: number for name, number in majors.items() if name.startswith("nvidia")}
    notebook.fact(item, *(f"{name}: major {number}" for name, number in named.items()))
    for name in ("dev", "dev/nvidia-caps"):
        folder = roots.on_host(f"/{name}")
        if folder.is_dir():
            found = sorted(p.name for p in folder.iterdir() if p.name.startswith("nvidia"))
            notebook.fact(item, f"/{name}: {' '.join(found) or 'none'}")
    if "nvidia" not in named and "nvidia-frontend" not in named:
        notebook.missing(item, "/proc/devices has no nvidia: no driver is loaded", _LOAD)
        return
    if "nvidia-uvm" not in named:
        notebook.missing(
            item, "/proc/devices has no nvidia-uvm: CUDA cannot start", "modprobe nvidia-uvm"
        )
        return
    try:
        nodes = [gpu_node(roots, gpu.minor).path for gpu in gpus if gpu.minor >= 0]
    except HostError as error:
        notebook.missing(item, str(error), _LOAD)
        return
    notebook.ok(item, f"numbers are known of nvidiactl, nvidia-uvm and {', '.join(nodes)}")


def _libraries(notebook: Notebook, search: DriverSearch, driver_version: str) -> None:
    item = Item.LIBRARIES
    if not driver_version:
        notebook.missing(
            item,
            "which libraries belong to the driver is not known before its version is",
            "mend the kernel module first",
        )
        return
    files = search.find(driver_version)
    if problem := missing_libraries(files, search.directories):
        notebook.missing(item, problem, "install the driver's libraries, or set --driver-root")
        return
    mounts = files.common.mounts
    directories = sorted({library.path.rpartition("/")[0] for library in files.libraries})
    notebook.fact(item, *(f"{x.path}: SONAME {x.soname}, {x.role.name}" for x in files.libraries))
    notebook.fact(item, *(f"{m.host_path} -> {m.container_path}" for m in mounts))
    notebook.ok(item, f"{len(mounts)} mounts of driver files from {', '.join(directories)}")


def libcuda(roots: Roots, search: DriverSearch) -> Path | None:
    """Path at which this program sees the driver's libcuda; None where it is not found."""
    found = search.find(kernel_module(roots))
    return inside(found.root, found.cuda.path) if found.cuda is not None else None


def _hook(notebook: Notebook, roots: Roots, choice: str) -> None:
    found = find_hook(roots, choice)
    if choice == NEVER:
        notebook.ok(Item.HOOK, "not used: --cdi-hook=never")
    elif found is not None:
        notebook.fact(Item.HOOK, f"{found.path} knows {', '.join(sorted(found.known))}")
        notebook.ok(Item.HOOK, f"{found.path} is there")
    elif choice != AUTO:
        notebook.missing(
            Item.HOOK,
            f"--cdi-hook={choice} is not there, not executable, or too old",
            "install nvidia-container-toolkit, or take --cdi-hook=auto",
        )
    else:
        notebook.note(
            Item.HOOK,
            "no nvidia-cdi-hook: images newer than the driver get no forward compatibility",
            "install the NVIDIA container toolkit 1.17 or newer, if they are needed",
        )


def _read(roots: Roots, path: str) -> str:
    try:
        return roots.on_host(path).read_text().strip()
    except OSError:
        return ""
