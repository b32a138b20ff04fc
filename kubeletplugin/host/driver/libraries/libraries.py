"""The driver's libraries below its root, wherever a distribution puts them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kubeletplugin.host.driver.libraries.architecture import Architecture
from kubeletplugin.host.driver.libraries.elf import read_library
from kubeletplugin.host.driver.libraries.insideroot import inside
from kubeletplugin.host.driver.libraries.ldcache import cached_paths
from kubeletplugin.host.driver.libraries.libraryroles import Role, role_of

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
"""Below the driver's root, in the order in which they are looked through; then the loader's cache.

Source: nvidia-container-toolkit (pkg/lookup/library.go) for what is not marked."""

CACHES = ("etc/ld.so.cache", "usr/local/glibc/etc/ld.so.cache")
_CACHED = ("libcuda.so", "libnvidia-")
_SUBDIRECTORY = "vdpau"
# Their names carry no driver version.
_UNVERSIONED = re.compile(r"libnvidia-nvvm70\.so\.\d+|libnvidia-egl-[a-z0-9]+\.so\.\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class Library:
    """``path`` is absolute below the driver's root; the loader looks for it as ``soname``.

    ``subdirectory`` is where below a library directory it is looked for: ``vdpau``, or empty.
    """

    path: str
    soname: str
    role: Role
    subdirectory: str = ""

    @property
    def stem(self) -> str:
        """``libcuda`` of ``libcuda.so.570.86.15``."""
        return stem(self.path.rpartition("/")[2])


def read_directories(text: str) -> tuple[str, ...]:
    """The value of ``--library-directories``: paths below the driver's root, by commas.

    Raises:
        click.BadParameter: there is none, or one leads out of the root.
    """
    found = tuple(path for part in text.split(",") if (path := part.strip().strip("/")))
    if not found or any(".." in path.split("/") for path in found):
        raise click.BadParameter(
            f"{text!r} is no list of directories below the driver's root, such as usr/lib64,usr/lib"
        )
    return found


def stem(name: str) -> str:
    """The name of a library without ``.so`` and what follows."""
    return name.partition(".so")[0]


def library_directories(root: Path, directories: Sequence[str]) -> dict[str, Path]:
    """Directories that are there, each once: path below ``root`` to where this program sees it.

    Those of the list come first, then those that the root's loader cache names.
    """
    found: dict[str, Path] = {}
    seen: set[tuple[int, int]] = set()
    for directory in [*directories, *_cached_directories(root)]:
        path = inside(root, directory)
        try:
            status = path.stat()
        except OSError:
            continue
        if path.is_dir() and (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            found[f"/{directory.strip('/')}"] = path
    return found


def find_libraries(
    directories: dict[str, Path], version: str, architecture: Architecture
) -> tuple[Library, ...]:
    """The libraries of one driver version for one processor, the first of each SONAME.

    ``directories`` as :func:`library_directories` gives them.
    """
    found: dict[tuple[str, str], Library] = {}
    for directory, seen in directories.items():
        for subdirectory in ("", _SUBDIRECTORY):
            place = f"{directory}/{subdirectory}".rstrip("/")
            for name in _driver_files(seen / subdirectory, version):
                role = role_of(stem(name))
                if role is None:
                    continue
                read = read_library(inside(seen, f"{subdirectory}/{name}"))
                if read is None or read.machine != architecture.machine:
                    continue
                library = Library(f"{place}/{name}", read.soname or name, role, subdirectory)
                found.setdefault((subdirectory, library.soname), library)
    return tuple(found.values())


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
    directories: dict[str, None] = {}
    for cache in CACHES:
        try:
            data = inside(root, cache).read_bytes()
        except OSError:
            continue
        for path in cached_paths(data, prefixes=_CACHED):
            directories.setdefault(path.rpartition("/")[0])
    return list(directories)
