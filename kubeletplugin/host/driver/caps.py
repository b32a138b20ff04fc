"""Device numbers from the host's /proc: MIG capabilities, and the majors of NVIDIA's devices.

The kernel makes no node for an instance's capability, so nodes are described by number, not looked
up. Sources: /proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<id>[/ci<id>]/access, /proc/devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots

CAPS = "nvidia-caps"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_DEVICES = "/proc/devices"


@dataclass(frozen=True, slots=True)
class Capability:
    """A capability's device number and permission bits."""

    major: int
    minor: int
    mode: int

    @property
    def path(self) -> str:
        """Its node: ``/dev/nvidia-caps/nvidia-cap<minor>``."""
        return f"/dev/nvidia-caps/nvidia-cap{self.minor}"


def instance_capabilities(
    roots: Roots, *, gpu_minor: int, gi_id: int, ci_id: int
) -> tuple[Capability, Capability]:
    """The capabilities of a GPU instance and of its compute instance.

    Raises:
        HostError: a file is missing or unreadable; names it.
    """
    major = _major(roots)
    gi = f"{_CAPABILITIES}/gpu{gpu_minor}/mig/gi{gi_id}"
    return (
        _read_access(roots, f"{gi}/access", major),
        _read_access(roots, f"{gi}/ci{ci_id}/access", major),
    )


def monitor_capability(roots: Roots) -> Capability:
    """The capability to see all instances of all GPUs and to change none (mig/monitor).

    Raises:
        HostError: a file is missing or unreadable; names it.
    """
    return _read_access(roots, f"{_CAPABILITIES}/mig/monitor", _major(roots))


def global_capabilities(roots: Roots) -> tuple[Capability, ...]:
    """The capabilities that belong to no instance: to change any (mig/config), and to see all.

    Raises:
        HostError: a file is missing or unreadable; names it.
    """
    major = _major(roots)
    return tuple(
        _read_access(roots, f"{_CAPABILITIES}/mig/{name}", major) for name in ("config", "monitor")
    )


def check_capabilities(roots: Roots) -> None:
    """Refuse while the driver shows no MIG capabilities, of which every slice needs two.

    Raises:
        HostError: says which file is missing, and the remedy.
    """
    _major(roots)
    folder = roots.on_host(f"{_CAPABILITIES}/mig")
    if not folder.is_dir():
        raise HostError(
            f"there is no {folder}, where the NVIDIA driver shows MIG capabilities; reload the "
            "kernel module nvidia, or mount the host's /proc where --host-root says"
        )


def _major(roots: Roots) -> int:
    major = character_majors(roots).get(CAPS)
    if major is None:
        raise HostError(
            f"{roots.on_host(_DEVICES)} has no {CAPS}: the NVIDIA driver's MIG capabilities are "
            "not set up; check that the kernel module nvidia is loaded and newer than 450.80"
        )
    return major


def character_majors(roots: Roots) -> Mapping[str, int]:
    """Driver name to major number of character devices; whole words, as in /proc/devices.

    Raises:
        HostError: /proc/devices cannot be read.
    """
    try:
        text = roots.read(_DEVICES)
    except OSError as error:
        path = roots.on_host(_DEVICES)
        raise HostError(f"cannot read {path}: {error.strerror or error}") from error
    return _majors(text)


@lru_cache(maxsize=1)
def _majors(text: str) -> Mapping[str, int]:
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name:
            majors.setdefault(name.strip(), int(number))
    return MappingProxyType(majors)


def _read_access(roots: Roots, relative: str, major: int) -> Capability:
    try:
        text = roots.read(relative)
    except OSError as error:
        raise HostError(
            f"cannot read MIG capability {roots.on_host(relative)}: {error.strerror or error}; "
            "the driver shows it as soon as the instance exists"
        ) from error
    fields = {
        name.strip(): value.strip()
        for name, separator, value in (line.partition(":") for line in text.splitlines())
        if separator
    }
    try:
        # The mode is printed in decimal: 292 is 0444.
        return Capability(major, int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"]))
    except (KeyError, ValueError) as error:
        raise HostError(
            f"MIG capability {roots.on_host(relative)} is not understood: {text[:200]!r}"
        ) from error
