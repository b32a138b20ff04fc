"""The search for the driver's files of this node, done anew when a directory has changed.

A driver container takes its files away when it restarts, and brings others after an upgrade.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.driverfiles import OPENCL, DriverFiles
from kubeletplugin.host.driver.graphics import configuration
from kubeletplugin.host.driver.hooks import AUTO, HOOK_PATHS, LDCONFIG_PATHS, NEVER, find_hook
from kubeletplugin.host.driver.libraries.architecture import Architecture, this_architecture
from kubeletplugin.host.driver.libraries.insideroot import inside
from kubeletplugin.host.driver.libraries.libraries import (
    CACHES,
    LIBRARY_DIRECTORIES,
    find_libraries,
    library_directories,
)
from kubeletplugin.host.roots import Roots

_Mark = tuple[int, ...] | None

PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
PROGRAM_DIRECTORIES = (
    "usr/bin",
    "usr/sbin",
    "usr/local/bin",  # Talos
    "home/kubernetes/bin/nvidia/bin",  # Container-Optimized OS
    "usr/libexec/nvidia/tesla/bin",  # Bottlerocket
    "usr/lib/nvidia/current",  # Debian
)


class DriverSearch:
    """Finds the driver's files. Thread-safe.

    ``directories`` are looked through below the driver's root. ``hook`` is ``auto``, ``never`` or
    the path of the program on the host.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        directories: Sequence[str] = LIBRARY_DIRECTORIES,
        hook: str = AUTO,
        architecture: Architecture | None = None,
    ) -> None:
        self._roots = roots
        self.directories = tuple(directories)
        self.hook = hook
        self._architecture = architecture or this_architecture()
        self._lock = threading.Lock()
        self._known: DriverFiles | None = None
        self._watched: tuple[str, ...] = ()
        self._mark: list[_Mark] = []

    def find(self, driver_version: str) -> DriverFiles:
        """The files of this driver version as they are now; never raises."""
        with self._lock:
            root = self._roots.driver_seen
            known = self._known
            if (
                known is None
                or (known.version, known.root) != (driver_version, root)
                or self._mark != _marks(self._watched)
            ):
                directories = library_directories(root, self.directories)
                self._watched, self._mark = _watched(map(str, self._places(root, directories)))
                known = self._known = self._look(driver_version, root, directories)
            return known

    def _look(self, version: str, root: Path, directories: dict[str, Path]) -> DriverFiles:
        return DriverFiles(
            version=version,
            root=root,
            driver_root=self._roots.driver_root,
            directories=directories,
            libraries=find_libraries(directories, version, self._architecture),
            programs=_programs(root),
            opencl=configuration(root, OPENCL),
            hook=find_hook(self._roots, self.hook),
            architecture=self._architecture,
        )

    def _places(self, root: Path, directories: dict[str, Path]) -> Iterator[Path]:
        """Directories and files that have to stay as they are for what was found to be true."""
        yield from directories.values()
        for place in (*self.directories, *CACHES, *PROGRAM_DIRECTORIES, f"etc/{OPENCL}"):
            yield inside(root, place)
        if self.hook != NEVER:
            for path in (self.hook, *LDCONFIG_PATHS, *HOOK_PATHS):
                yield inside(self._roots.host, path)


def missing_libraries(files: DriverFiles, directories: Iterable[str]) -> str:
    """Reason why a container would find no driver, with the remedy; empty if it finds one."""
    if files.cuda is not None:
        return ""
    return (
        f"found no libcuda.so.{files.version} for {files.architecture.name} below {files.root} "
        f"(in {', '.join(directories)}, and what its ld.so.cache names); install the driver's "
        "libraries of that version, or name their root with --driver-root or their directory with "
        "--library-directories"
    )


def check_files(files: DriverFiles, search: DriverSearch) -> None:
    """Refuse where a container would not start or would find no driver.

    Raises:
        HostError: says what is missing, and the remedy.
    """
    problem = missing_libraries(files, search.directories) or missing_hook(files, search.hook)
    if problem:
        raise HostError(problem)


def missing_hook(files: DriverFiles, choice: str) -> str:
    """Reason why the hook asked for by path cannot be used; empty if it can, or none was."""
    if choice in {AUTO, NEVER} or files.hook is not None:
        return ""
    return (
        f"--cdi-hook={choice} is no nvidia-cdi-hook or nvidia-ctk that this node can run (it has "
        "to be executable, know update-ldcache and create-symlinks, and find one of "
        f"{', '.join(LDCONFIG_PATHS)}); install nvidia-container-toolkit, or take --cdi-hook=auto"
    )


def _programs(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PROGRAMS:
        for directory in PROGRAM_DIRECTORIES:
            if inside(root, f"{directory}/{name}").is_file():
                found[name] = f"/{directory}/{name}"
                break
    return found


def _watched(places: Iterable[str]) -> tuple[tuple[str, ...], list[_Mark]]:
    """Paths that change when one of ``places`` does, with their marks from before that is told.

    Most places are on no node: in their stead is the directory in which they would appear.
    """
    wanted = tuple(places)
    watched: tuple[str, ...] = ()
    while True:
        marks = _marks(watched)
        if watched == (watched := tuple(dict.fromkeys(map(_nearest, wanted)))):
            return watched, marks


def _nearest(path: str) -> str:
    """The path, or the nearest above it that is there."""
    while path != "/" and not os.path.exists(path):  # noqa: PTH110 - as all of these
        path = os.path.dirname(path)  # noqa: PTH120
    return path


def _marks(paths: Iterable[str]) -> list[_Mark]:
    """Marks that change when something in a directory, or a file, changes."""
    marks: list[_Mark] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - some at each look
        except OSError:
            marks.append(None)
        else:
            # Of two changes within a tick of the clock the time tells one.
            marks.append((status.st_ino, status.st_mtime_ns, status.st_size, status.st_nlink))
    return marks
