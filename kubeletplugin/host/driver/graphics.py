"""Files and nodes besides libraries that graphics needs: EGL, Vulkan, GBM, X.Org, DRM nodes.

Source: nvidia-container-toolkit (internal/discover/graphics.go, internal/platform-support/dgpu).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from cdi.spec import DeviceNode, Mount
from kubeletplugin.host.driver.devicenodes import device_node
from kubeletplugin.host.driver.libraries.architecture import Architecture
from kubeletplugin.host.driver.libraries.insideroot import inside
from kubeletplugin.host.driver.libraries.libraries import Library
from kubeletplugin.host.driver.libraries.librarymounts import container_directories
from kubeletplugin.host.roots import Roots

CONFIGURATION_DIRECTORIES = ("etc", "usr/local/share", "usr/share")
_SHARED = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_VULKAN = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_XORG = ("nvidia/xorg", "xorg/modules/drivers", "xorg/modules/extensions")
_ALLOCATOR = "libnvidia-allocator"
_GBM = "gbm/nvidia-drm_gbm.so"
_DRM = ("card", "renderD")


def configuration(root: Path, name: str) -> str | None:
    """The path below the driver's root of a configuration file; None where it is not."""
    for directory in CONFIGURATION_DIRECTORIES:
        if inside(root, f"{directory}/{name}").is_file():
            return f"/{directory}/{name}"
    return None


def graphics_mounts(
    root: Path,
    *,
    driver_root: Path,
    directories: Mapping[str, Path],
    version: str,
    architecture: Architecture,
) -> Iterator[Mount]:
    """Configuration to where loaders look for it, X.Org's modules where they are on the host.

    ``root`` is where this program sees the driver's root, ``driver_root`` where the host does,
    ``directories`` are the driver's library directories.
    """
    vulkan = (*_VULKAN, f"vulkan/icd.d/nvidia_icd.{architecture.name}.json")
    for names, place in ((_SHARED, "/usr/share"), (vulkan, "/etc")):
        for name in names:
            if path := configuration(root, name):
                yield Mount(str(driver_root / path.lstrip("/")), f"{place}/{name}")
    modules = {"nvidia_drv.so": "nvidia_drv.so"}
    modules[f"libglxserver_nvidia.so.{version}"] = "libglxserver_nvidia.so"
    for file, name in modules.items():
        for directory in (f"{library}/{xorg}" for library in directories for xorg in _XORG):
            if inside(root, f"{directory}/{file}").is_file():
                source = str(driver_root / f"{directory}/{file}".lstrip("/"))
                yield Mount(source, f"{directory}/{name}")
                break


def gbm_mounts(
    libraries: tuple[Library, ...], *, driver_root: Path, architecture: Architecture
) -> Iterator[Mount]:
    """GBM's backend, which is the allocator library under another name."""
    for library in libraries:
        if library.stem == _ALLOCATOR:
            for directory in container_directories(architecture):
                yield Mount(str(driver_root / library.path.lstrip("/")), f"{directory}/{_GBM}")


def drm_nodes(roots: Roots, pci_address: str) -> Iterator[DeviceNode]:
    """``/dev/dri/card<N>`` and ``/dev/dri/renderD<N>`` of a GPU, also by its PCI address.

    Raises:
        HostError: the node is not there and sysfs does not tell its numbers.
    """
    folder = inside(roots.host, f"/sys/bus/pci/devices/{pci_address}/drm")
    try:
        names = sorted(p.name for p in folder.iterdir() if p.name.startswith(_DRM))
    except OSError:
        return
    for name in names:
        major, minor = _numbers(folder / name / "dev")
        node = device_node(roots, f"/dev/dri/{name}", major=major, minor=minor)
        yield node
        kind = "render" if name.startswith("render") else "card"
        path = f"/dev/dri/by-path/pci-{pci_address}-{kind}"
        yield replace(node, path=path, host_path=node.host_path or node.path)


def _numbers(path: Path) -> tuple[int | None, int]:
    """Major and minor from a device's file in sysfs: ``226:0``."""
    try:
        major, _, minor = path.read_text().partition(":")
        return int(major), int(minor)
    except (OSError, ValueError):
        return None, 0
