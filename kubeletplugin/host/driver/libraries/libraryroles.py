"""Roles of the libraries of NVIDIA's driver: compute, video, graphics.

Known are those of video, of graphics, and those that no container needs; every other belongs to
compute and utilities, so that a library that a newer driver brings is there where CUDA loads it.
Source: the lists of libnvidia-container (src/nvc_info.c) and nvidia-container-toolkit.
"""

from __future__ import annotations

from enum import Enum, auto


class Role(Enum):
    """Purpose of a library or file."""

    COMPUTE = auto()
    VIDEO = auto()
    GRAPHICS = auto()


_VIDEO = frozenset(
    {"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"},
)
_GRAPHICS = frozenset(
    {
        "libglxserver_nvidia",
        "libnvidia-cbl",
        "libnvidia-eglcore",
        "libnvidia-fbc",
        "libnvidia-glcore",
        "libnvidia-glsi",
        "libnvidia-glvkspirv",
        "libnvidia-ifr",
        "libnvidia-ngx",
        "libnvidia-present",
        "libnvidia-rtcore",
        "libnvidia-tls",
        "libnvidia-vksc-core",
        "libnvidia-vulkan-producer",
        "libnvoptix",
    }
)
_GRAPHICS_BEGIN = ("libEGL", "libGL", "libOpenGL", "libnvidia-egl-")
# Of the settings program, of NVSwitches, and of the toolkit itself.
_NOBODY = frozenset(
    {
        "libnvidia-gtk2",
        "libnvidia-gtk3",
        "libnvidia-nscq",
        "libnvidia-sandboxutils",
        "libnvidia-wayland-client",
    }
)


def role_of(stem: str) -> Role | None:
    """The role of ``libcuda`` and the like; None of what no container needs."""
    if stem in _NOBODY:
        return None
    if stem in _VIDEO:
        return Role.VIDEO
    if stem in _GRAPHICS or stem.startswith(_GRAPHICS_BEGIN):
        return Role.GRAPHICS
    return Role.COMPUTE
