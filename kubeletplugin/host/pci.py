"""GPUs as Linux and NVIDIA's kernel module list them: PCI addresses and host bridges."""

from __future__ import annotations

import contextlib
import logging

from kubeletplugin.host.roots import Roots

_log = logging.getLogger(__name__)


def listed_gpus(roots: Roots) -> frozenset[str]:
    """PCI addresses of the GPUs that NVIDIA's kernel module has; none where it cannot say."""
    try:
        folder = roots.on_host("/proc/driver/nvidia/gpus")
        return frozenset(path.name for path in folder.iterdir())
    except OSError as error:
        _log.debug("the kernel module's GPUs: %s", error)
        return frozenset()


def listed_minors(roots: Roots) -> tuple[int, ...]:
    """Minor numbers of the GPUs that NVIDIA's kernel module has, as far as it says them."""
    found: list[int] = []
    for address in listed_gpus(roots):
        with contextlib.suppress(OSError, ValueError):
            text = roots.read(f"/proc/driver/nvidia/gpus/{address}/information")
            _, _, rest = text.partition("Device Minor:")
            found.append(int(rest.partition("\n")[0]))
    return tuple(sorted(found))


def pcie_root(address: str, roots: Roots) -> str:
    """``pci0000:00`` from a PCI device's place in sysfs; empty where that cannot be read."""
    try:
        target = roots.on_host(f"/sys/bus/pci/devices/{address}").readlink()
    except OSError:
        return ""
    return next((part for part in target.parts if part.startswith("pci")), "")
