"""The driver's libraries below its root, wherever a distribution puts them, and their mounts.

A loader looks for a library by the name in the library's DT_SONAME, whatever the file is called. It
looks first in the image's cache, which does not know mounted files, and then in the directories
that were compiled into the loader: ``/lib/<multiarch>`` and ``/usr/lib/<multiarch>`` on Debian-like
systems, ``/lib64`` and ``/usr/lib64`` on Red-Hat-like ones. So each library is mounted twice, into
one directory of either kind, under its SONAME. The links beside a library on the host are not used,
as they may be absent or an older driver's.
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO

from cdi.spec import Mount
from kubeletplugin.host.roots import Roots, inside, located

X86_64, AARCH64 = 62, 183
"""Processors, by their numbers in ELF files (elf(5))."""

LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",  # Debian's own packages
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
    "home/kubernetes/bin/nvidia/lib64",  # Container-Optimized OS
    "usr/local/glibc/usr/lib64",  # Talos
    "usr/local/glibc/usr/lib",
    "usr/local/glibc/lib64",
    "usr/local/glibc/lib",
    "usr/lib/nvidia/tesla",  # Bottlerocket
)
"""Directories below the driver's root, in the order in which they are searched.

Directories that the loader's cache names come after them. Source of those without a comment:
nvidia-container-toolkit (pkg/lookup/library.go)."""

CACHES = ("etc/ld.so.cache", "usr/local/glibc/etc/ld.so.cache")
_CACHED = re.compile(rb"(/[^\0]{0,4000})/(?:libcuda\.so|libnvidia-)[^/\0]*\0")
_SUBDIRECTORY = "vdpau"
# Libraries of the driver whose file names have no driver version.
_UNVERSIONED = re.compile(r"libnvidia-nvvm70\.so\.\d+|libnvidia-egl-[a-z0-9]+\.so\.\d+(?:\.\d+)+")


class Role(Enum):
    """Purpose of a library or file."""

    COMPUTE = auto()
    VIDEO = auto()
    GRAPHICS = auto()


_VIDEO = frozenset({"libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"})
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
# Libraries of the settings program, of NVSwitches and of the toolkit, which no container needs.
_NOBODY = frozenset(
    {
        "libnvidia-gtk2",
        "libnvidia-gtk3",
        "libnvidia-nscq",
        "libnvidia-sandboxutils",
        "libnvidia-wayland-client",
    }
)
# Names besides the SONAME under which programs open a library.
_ALSO = {
    "libcuda": ("libcuda.so",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Architecture of a node's processor.

    ``name``: the kernel's name. ``machine``: the number in ELF files. ``multiarch``: Debian's name.
    """

    name: str
    machine: int
    multiarch: str

    @property
    def container_directories(self) -> tuple[str, ...]:
        """Directories in a container under which libraries are mounted."""
        return ("/usr/lib64", f"/usr/lib/{self.multiarch}")


ARCHITECTURES = (
    Architecture("x86_64", X86_64, "x86_64-linux-gnu"),
    Architecture("aarch64", AARCH64, "aarch64-linux-gnu"),
)


def this_architecture(name: str = "") -> Architecture:
    """Architecture called ``name``, by default that of this machine; x86_64 if it is unknown."""
    name = name or platform.machine()
    return next((a for a in ARCHITECTURES if a.name == name), ARCHITECTURES[0])


@dataclass(frozen=True, slots=True)
class Library:
    """A library of the driver.

    ``path``: path of the file on the host, where no link is left. ``name``: name of the file in
    the driver's directory. ``soname``: name by which the loader looks for the library.
    ``subdirectory``: directory below a library directory in which programs
    look for the library: ``vdpau``, or empty.
    """

    path: str
    soname: str
    role: Role
    subdirectory: str = ""
    name: str = ""

    @property
    def stem(self) -> str:
        """File name up to ``.so``: ``libcuda`` for ``libcuda.so.570.86.15``."""
        return (self.name or self.path.rpartition("/")[2]).partition(".so")[0]

    @property
    def also(self) -> tuple[str, ...]:
        """Names besides the SONAME under which programs open the library."""
        return tuple(name for name in _ALSO.get(self.stem, ()) if name != self.soname)


def library_directories(roots: Roots, directories: Sequence[str]) -> dict[str, Path]:
    """Existing library directories: by path below the driver's root, the path for this program.

    ``directories`` come first, then the directories that the root's loader cache names. A directory
    with several paths is listed once.
    """
    found: dict[str, Path] = {}
    for directory in [*directories, *_cached_directories(roots.driver_seen)]:
        at = located(roots, directory)
        if at is not None and at[0].is_dir() and at[0] not in found.values():
            found[f"/{directory.strip('/')}"] = at[0]
    return found


def find_libraries(
    roots: Roots, directories: dict[str, Path], version: str, architecture: Architecture
) -> tuple[Library, ...]:
    """Libraries of one driver version for one architecture, the first that is found of each SONAME.

    ``directories``: as returned by :func:`library_directories`.
    """
    found: dict[tuple[str, str], Library] = {}
    for directory, seen in directories.items():
        for subdirectory in ("", _SUBDIRECTORY):
            place = f"{directory}/{subdirectory}".rstrip("/")
            for name in _driver_files(seen / subdirectory, version):
                role = role_of(name.partition(".so")[0])
                at = located(roots, f"{place}/{name}") if role else None
                read = read_library(at[0]) if at else None
                if not role or not at or read is None or read[0] != architecture.machine:
                    continue
                library = Library(at[1], read[1] or name, role, subdirectory, name)
                found.setdefault((subdirectory, library.soname), library)
    return tuple(found.values())


def role_of(stem: str) -> Role | None:
    """Role of a library by its stem, such as ``libcuda``; None if no container needs the library.

    The libraries for video and graphics, and those that no container needs, are listed here. Every
    other library counts as one for compute, so that CUDA finds a library that only a newer driver
    has. Source: libnvidia-container (src/nvc_info.c) and nvidia-container-toolkit.
    """
    if stem in _NOBODY:
        return None
    if stem in _VIDEO:
        return Role.VIDEO
    if stem in _GRAPHICS or stem.startswith(_GRAPHICS_BEGIN):
        return Role.GRAPHICS
    return Role.COMPUTE


def library_mounts(
    libraries: Iterable[Library], *, architecture: Architecture, links: bool
) -> Iterator[Mount]:
    """Mounts of libraries into containers.

    ``links``: mount each library also under its other names, for containers without the links of
    :func:`library_links`.
    """
    for library in libraries:
        for directory in architecture.container_directories:
            place = f"{directory}/{library.subdirectory}".rstrip("/")
            for name in (library.soname, *(library.also if links else ())):
                yield Mount(library.path, f"{place}/{name}")


def library_links(libraries: Iterable[Library], architecture: Architecture) -> tuple[str, ...]:
    """Links for the libraries' other names, as nvidia-cdi-hook takes them: ``target::link``."""
    return tuple(
        f"{library.soname}::{directory}/{name}"
        for library in libraries
        for directory in architecture.container_directories
        for name in library.also
    )


def _driver_files(directory: Path, version: str) -> Iterator[str]:
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError:
        return
    for name in names:
        versioned = name.startswith("lib") and name.endswith(f".so.{version}")
        if versioned or _UNVERSIONED.fullmatch(name):
            yield name


def _cached_directories(root: Path) -> list[str]:
    """Directories of the driver's libraries that the loader's caches name.

    In each format of a cache (glibc, sysdeps/generic/dl-cache.h) paths end in a zero byte.
    """
    directories: dict[str, None] = {}
    for cache in CACHES:
        try:
            data = inside(root, cache).read_bytes()
        except OSError:
            continue
        for found in _CACHED.finditer(data):
            directories.setdefault(found[1].decode(errors="replace"))
    return list(directories)


# Shared libraries (elf(5)), 64 bits and little endian, as NVIDIA's machines are.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_IDENTITY = b"\x7fELF\x02\x01"
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_STRING_TABLE, _SONAME = 5, 14
_LONGEST_NAME = 256


def read_library(path: Path) -> tuple[int, str] | None:
    """Processor of a library, as its number in ELF files, and its SONAME, which may be empty.

    None for a file that is no 64-bit library, is damaged or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _read(file: BinaryIO) -> tuple[int, str] | None:
    identity, _, machine, _, _, table, _, _, _, _, count, *_ = _HEADER.unpack(
        file.read(_HEADER.size)
    )
    if not identity.startswith(_IDENTITY):
        return None
    file.seek(table)
    segments = [_SEGMENT.unpack(file.read(_SEGMENT.size)) for _ in range(count)]
    tags: dict[int, int] = {}
    for kind, _, offset, _, _, size, *_ in segments:
        if kind == _DYNAMIC_SEGMENT:
            file.seek(offset)
            content = file.read(size - size % _DYNAMIC.size)
            tags = dict(reversed(list(_DYNAMIC.iter_unpack(content))))
    if _SONAME not in tags or _STRING_TABLE not in tags:
        return machine, ""
    strings = tags[_STRING_TABLE]
    for kind, _, offset, address, _, size, *_ in segments:
        if kind == _LOAD and address <= tags[_STRING_TABLE] < address + size:
            strings = tags[_STRING_TABLE] - address + offset
    file.seek(strings + tags[_SONAME])
    name = file.read(_LONGEST_NAME).partition(b"\0")[0].decode()
    return machine, name if "/" not in name else ""
