"""The host: this process's rights, the driver's files and numbers, the container runtime."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kubeletplugin.check.report import Gpu, Instance, Item, Notebook
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import AUTO, NEVER, DriverSearch, find_hook
from kubeletplugin.host.nodes import CAPS, character_majors, gpu_node, instance_capabilities
from kubeletplugin.host.processes import INITIAL_NAMESPACE, privileges
from kubeletplugin.host.roots import Roots

_UNKNOWN = "unknown"
_OWN = Path("/proc")


def examine_process(notebook: Notebook, *, proc: Path) -> None:
    """Permission to change MIG, and the pid namespace; ``proc`` is any /proc that has ``self``."""
    root, admin = privileges(proc / "self")
    notebook.fact(Item.PERMISSION, f"root={root}", f"CAP_SYS_ADMIN={admin}")
    if root and admin:
        notebook.ok(Item.PERMISSION, "root with CAP_SYS_ADMIN: may make instances")
    else:
        notebook.missing(
            Item.PERMISSION,
            "not root with CAP_SYS_ADMIN: NVML refuses to make instances",
            "run it as root, or in a privileged container as the chart's",
        )
    namespace, first = _link(proc / "self/ns/pid"), _link(proc / "1/ns/pid")
    notebook.fact(Item.PID_NAMESPACE, f"own {namespace}", f"of the first process {first}")
    # The first process of our own /proc is that of our own namespace, whichever that is.
    told = first != _UNKNOWN and proc != _OWN
    if namespace == (first if told else INITIAL_NAMESPACE):
        notebook.ok(Item.PID_NAMESPACE, "the host's: NVML can name processes")
    else:
        notebook.note(
            Item.PID_NAMESPACE,
            "not the host's: NVML names no process here, an empty list proves nothing",
            "hostPID: true in the pod",
        )


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return _UNKNOWN


_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_MIG_MINORS = "/proc/driver/nvidia-caps/mig-minors"
_LOAD = "load the NVIDIA driver's modules (modprobe nvidia nvidia-uvm), or install the driver"


def examine_driver(
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
    notebook.fact(item, f"major of {CAPS}: {major}", *present)
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
        found += (node.minor for node in both if node.minor is not None)
    return replace(instance, capability_minors=tuple(dict.fromkeys(found)))


def _numbers(roots: Roots) -> dict[str, int]:
    """mig-minors: name of a capability to minor number."""
    pairs = (line.rsplit(maxsplit=1) for line in _read(roots, _MIG_MINORS).splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}  # noqa: PLR2004


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
    if not roots.on_host("/dev/nvidiactl").exists():
        notebook.note(
            item,
            "the host has no /dev/nvidiactl, which NVML makes as root unless the driver's "
            "parameter ModifyDeviceFiles (/proc/driver/nvidia/params) is 0",
            "start the plugin, which makes device nodes itself",
        )
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
    if problem := search.missing_libraries(files):
        notebook.missing(item, problem, "install the driver's libraries, or set --driver-root")
        return
    mounts = files.common.mounts
    directories = sorted({library.path.rpartition("/")[0] for library in files.libraries})
    notebook.fact(item, *(f"{x.path}: SONAME {x.soname}, {x.role.name}" for x in files.libraries))
    notebook.fact(item, *(f"{m.host_path} -> {m.container_path}" for m in mounts))
    notebook.ok(item, f"{len(mounts)} mounts of driver files from {', '.join(directories)}")


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


_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_KIND = re.compile(r"""^\s*"?kind"?\s*:\s*"?([^",\s]+)""", re.MULTILINE)
_CONTAINERD = (
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
)
_MOST_BYTES = 1 << 20


def examine_runtime(notebook: Notebook, roots: Roots) -> None:
    """CDI directories, and whether the runtime reads them."""
    _cdi(notebook, roots)
    _runtime(notebook, roots)


def _cdi(notebook: Notebook, roots: Roots) -> None:
    places = {str(roots.cdi): roots.cdi}
    places |= {path: folder for path in _DIRECTORIES if (folder := roots.on_host(path)).is_dir()}
    for path, folder in places.items():
        specs = sorted(_specs(folder))
        notebook.fact(Item.CDI, f"{path}: {', '.join(specs) or 'no specs'}")
    if not roots.cdi.is_dir():
        parent = next(p for p in roots.cdi.parents if p.is_dir())
        if not os.access(parent, os.W_OK):
            notebook.missing(
                Item.CDI, f"{roots.cdi} is not there and cannot be made", f"make {parent} writable"
            )
            return
        notebook.note(Item.CDI, f"{roots.cdi} is not there yet; the plugin makes it")
    elif os.access(roots.cdi, os.W_OK):
        others = sum(len(list(_specs(folder))) for folder in places.values())
        notebook.ok(Item.CDI, f"{roots.cdi} is writable; {others} specs in {len(places)} places")
    else:
        notebook.missing(Item.CDI, f"{roots.cdi} is not writable", "run it as root")


def _specs(folder: Path) -> Iterator[str]:
    """``file (kind)`` of each spec of a directory."""
    try:
        files = [p for p in folder.iterdir() if p.suffix in {".json", ".yaml"}]
    except OSError:
        return
    for path in files:
        try:
            with path.open(errors="replace") as file:
                kind = _KIND.search(file.read(_MOST_BYTES))
        except OSError:
            kind = None
        yield f"{path.name} ({kind.group(1) if kind else 'not understood'})"


def _runtime(notebook: Notebook, roots: Roots) -> None:
    item = Item.CONTAINER_RUNTIME
    if roots.on_host("/etc/crio").is_dir():
        notebook.ok(item, "CRI-O reads CDI specs by default")
        return
    path = next((p for p in _CONTAINERD if roots.on_host(p).is_file()), None)
    if path is None:
        notebook.note(item, "no configuration of containerd or CRI-O found: defaults are in force")
        return
    try:
        config = tomllib.loads(roots.on_host(path).read_text())
    except (OSError, ValueError) as error:
        notebook.note(item, f"{path} cannot be read: {error}")
        return
    settings = dict(_settings(config))
    notebook.fact(
        item,
        f"{path}: version {config.get('version', 1)}",
        *(f"{k}={v}" for k, v in settings.items()),
    )
    enabled = settings.get("enable_cdi")
    if enabled is False:
        notebook.missing(
            item, f"{path} has enable_cdi = false", "set enable_cdi = true and restart containerd"
        )
    elif enabled is None:
        notebook.note(
            item,
            f"{path} does not set enable_cdi: it is on from containerd 2.0, off in 1.7",
            "with 1.7 set enable_cdi = true and restart containerd",
        )
    else:
        notebook.ok(item, f"{path} has enable_cdi = true")


def _settings(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings about CDI, wherever the version of the configuration has them."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value)
        elif key in {"enable_cdi", "cdi_spec_dirs"}:
            yield key, value
