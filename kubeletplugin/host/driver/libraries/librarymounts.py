"""Mounts under which every loader finds a library, whatever the container's image.

A loader looks into the image's cache, which knows nothing of what is mounted, and then into the
directories that were compiled into it: ``/lib/<multiarch>`` and ``/usr/lib/<multiarch>`` on
Debian-like systems, ``/lib64`` and ``/usr/lib64`` on Red-Hat-like ones. So each library is mounted
into one of either kind, under the name for which the loader looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cdi.spec import Mount
from kubeletplugin.host.driver.libraries.architecture import Architecture
from kubeletplugin.host.driver.libraries.libraries import Library

# Names besides the SONAME under which programs open a library.
_ALSO = {
    "libcuda": ("libcuda.so",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
}


def container_directories(architecture: Architecture) -> tuple[str, ...]:
    """Directories in a container under which libraries are mounted."""
    return ("/usr/lib64", f"/usr/lib/{architecture.multiarch}")


def library_mounts(
    libraries: Iterable[Library],
    *,
    driver_root: Path,
    architecture: Architecture,
    links: bool,
) -> Iterator[Mount]:
    """The mounts of some libraries; with ``links`` also under the names of :func:`library_links`.

    ``driver_root`` is the root of the driver's files as the host sees it.
    """
    for library in libraries:
        host_path = str(driver_root / library.path.lstrip("/"))
        names = (library.soname, *(_also(library) if links else ()))
        for directory in container_directories(architecture):
            place = f"{directory}/{library.subdirectory}".rstrip("/")
            for name in names:
                yield Mount(host_path, f"{place}/{name}")


def library_links(libraries: Iterable[Library], architecture: Architecture) -> tuple[str, ...]:
    """Links that stand for the other names, as nvidia-cdi-hook takes them: ``target::link``."""
    return tuple(
        f"{library.soname}::{directory}/{name}"
        for library in libraries
        for directory in container_directories(architecture)
        for name in _also(library)
    )


def _also(library: Library) -> tuple[str, ...]:
    return tuple(name for name in _ALSO.get(library.stem, ()) if name != library.soname)
