"""Checks of the host: this process's rights, the driver's files and numbers, the runtime."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kubeletplugin.check.report import Item, Notebook
from kubeletplugin.errors import HostError
from kubeletplugin.host.driverfiles import NEVER, DriverSearch
from kubeletplugin.host.nodes import (
    CAPS,
    character_majors,
    check_capabilities,
    control_nodes,
    gpu_node,
)
from kubeletplugin.host.processes import INITIAL_NAMESPACE, privileges
from kubeletplugin.host.roots import Roots

_UNKNOWN = "unknown"
_OWN = Path("/proc")
_LOAD = "load the NVIDIA driver's modules (modprobe nvidia nvidia-uvm), or install the driver"
_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")


def examine_process(notebook: Notebook, *, proc: Path) -> None:
    """Check the right to change MIG, and the pid namespace; ``proc``: any /proc with ``self``."""
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
    # In our own /proc the first process is always in our own namespace, which tells nothing.
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


def examine_driver(
    notebook: Notebook,
    roots: Roots,
    *,
    search: DriverSearch,
    driver_version: str,
    minors: Iterable[int],
) -> None:
    """Check MIG capabilities, device nodes, driver files and hooks, as the plugin finds them."""
    majors: dict[str, int] = {}
    try:
        majors |= character_majors(roots)
        check_capabilities(roots)
        notebook.ok(Item.CAPABILITIES, f"{CAPS} has major {majors[CAPS]}")
    except HostError as error:
        notebook.refused(Item.CAPABILITIES, error, _LOAD)
    named = (f"{n}: major {number}" for n, number in majors.items() if n.startswith("nvidia"))
    notebook.fact(Item.DEVICE_NODES, *named)
    for name in ("dev", "dev/nvidia-caps"):
        folder = roots.on_host(f"/{name}")
        if folder.is_dir():
            found = sorted(p.name for p in folder.iterdir() if p.name.startswith("nvidia"))
            notebook.fact(Item.DEVICE_NODES, f"/{name}: {' '.join(found) or 'none'}")
    if not roots.on_host("/dev/nvidiactl").exists() and "nvidia-uvm" in majors:
        notebook.note(
            Item.DEVICE_NODES,
            "the host has no /dev/nvidiactl, which NVML makes as root unless the driver's "
            "parameter ModifyDeviceFiles (/proc/driver/nvidia/params) is 0",
            "start the plugin, which makes device nodes itself",
        )
    try:
        nodes = [*control_nodes(roots).nodes, *(gpu_node(roots, minor) for minor in minors)]
        text = f"numbers are known of {', '.join(node.path for node in nodes)}"
        notebook.ok(Item.DEVICE_NODES, text)
    except HostError as error:
        notebook.refused(Item.DEVICE_NODES, error, _LOAD)
    if driver_version:
        _files(notebook, search, driver_version)
    else:
        notebook.missing(
            Item.LIBRARIES,
            "which libraries belong to the driver is not known before its version is",
            "mend the kernel module first",
        )


def _files(notebook: Notebook, search: DriverSearch, driver_version: str) -> None:
    files = search.find(driver_version)
    try:
        search.check(files)
    except HostError as error:
        notebook.refused(Item.LIBRARIES, error, "install the driver's libraries")
    else:
        mounts = files.common.mounts
        directories = sorted({library.path.rpartition("/")[0] for library in files.libraries})
        sonames = (f"{x.path}: SONAME {x.soname}, {x.role.name}" for x in files.libraries)
        notebook.fact(Item.LIBRARIES, *sonames)
        notebook.fact(Item.LIBRARIES, *(f"{m.host_path} -> {m.container_path}" for m in mounts))
        text = f"{len(mounts)} mounts of driver files from {', '.join(directories)}"
        notebook.ok(Item.LIBRARIES, text)
        problem, _, remedy = files.lacking.partition("; ")
        if problem:
            notebook.note(Item.LIBRARIES, problem, remedy)
    if files.hook is not None:
        notebook.fact(Item.HOOK, f"{files.hook.path} knows {', '.join(sorted(files.hook.known))}")
        notebook.ok(Item.HOOK, f"{files.hook.path} is there")
    elif search.hook == NEVER:
        notebook.ok(Item.HOOK, "not used: --cdi-hook=never")
    else:
        notebook.note(
            Item.HOOK,
            "no nvidia-cdi-hook: images newer than the driver get no forward compatibility",
            "install the NVIDIA container toolkit 1.17 or newer, if they are needed",
        )


def examine_cdi(notebook: Notebook, roots: Roots) -> None:
    """Check the CDI directories, and list the specs in them."""
    places = {str(roots.cdi): roots.cdi}
    places |= {path: folder for path in _DIRECTORIES if (folder := roots.on_host(path)).is_dir()}
    specs = {
        path: sorted(p.name for p in folder.glob("*") if p.suffix in {".json", ".yaml"})
        for path, folder in places.items()
    }
    notebook.fact(Item.CDI, *(f"{p}: {', '.join(s) or 'no specs'}" for p, s in specs.items()))
    nearest = next(p for p in (roots.cdi, *roots.cdi.parents) if p.is_dir())
    if not os.access(nearest, os.W_OK):
        notebook.missing(Item.CDI, f"{nearest} is not writable", "run it as root")
    elif nearest != roots.cdi:
        notebook.note(Item.CDI, f"{roots.cdi} is not there yet; the plugin makes it")
    else:
        count = sum(map(len, specs.values()))
        notebook.ok(Item.CDI, f"{roots.cdi} is writable; {count} specs in {len(places)} places")
