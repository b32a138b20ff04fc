"""The driver's files of this node, and the selection of them that a container gets for its device.

Sources for places, files and hooks: nvidia-container-toolkit v1.20 (internal/discover,
internal/platform-support/dgpu, cmd/nvidia-cdi-hook).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path

from cdi.spec import (
    CREATE_CONTAINER,
    CdiError,
    Device,
    Edits,
    Hook,
    Mount,
    Spec,
    driver_kind,
    joined,
)
from cdi.store import SpecStore
from kubeletplugin.errors import HostError
from kubeletplugin.host.libraries import (
    CACHES,
    LIBRARY_DIRECTORIES,
    Architecture,
    Library,
    Role,
    find_libraries,
    library_directories,
    library_links,
    library_mounts,
    read_library,
    this_architecture,
)
from kubeletplugin.host.roots import Roots, inside, located

PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
PROGRAM_DIRECTORIES = (
    "usr/bin",
    "usr/sbin",
    "usr/local/bin",  # Talos
    "usr/libexec/nvidia/tesla/bin",  # Bottlerocket
    "usr/lib/nvidia/current",  # Debian
)
CONFIGURATION_DIRECTORIES = ("etc", "usr/local/share", "usr/share")
ENV = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Keeps the NVIDIA runtime, where it is the node's default, from adding devices to a container."""

_OPENCL = "OpenCL/vendors/nvidia.icd"
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

AUTO, NEVER = "auto", "never"
UPDATE_LDCACHE = "update-ldcache"
CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
HOOK_NAMES = (CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE)
HOOK_PATHS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",  # the GPU operator's toolkit container
    "/usr/local/bin/nvidia-cdi-hook",
    "/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook",  # the same on COS
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
)
LDCONFIG_PATHS = (
    "/sbin/ldconfig",  # what the hook takes by itself
    "/usr/sbin/ldconfig",
    "/usr/bin/ldconfig",
    "/usr/local/glibc/sbin/ldconfig",  # Talos
)
_MULTICALL = "nvidia-ctk"
_HOOK_ENV = ("NVIDIA_CTK_DEBUG=false",)


@dataclass(frozen=True, slots=True)
class HookProgram:
    """NVIDIA's nvidia-cdi-hook on the node, which the container runtime runs.

    It writes the image's loader cache anew, and lets an image with a newer CUDA use its own
    libraries. This driver does not bring the program along.

    ``path``: of the program on the host. ``ldconfig``: path of the ldconfig that the program runs.
    ``known``: those of HOOK_NAMES that the program has.
    """

    path: str
    ldconfig: str
    known: frozenset[str]

    def hook(self, name: str, *arguments: str) -> Hook:
        """Hook that runs the program's subcommand ``name`` with these arguments."""
        program = self.path.rpartition("/")[2]
        command = (program, "hook") if program == _MULTICALL else (program,)
        return Hook(CREATE_CONTAINER, self.path, (*command, name, *arguments), _HOOK_ENV)

    def symlinks(self, links: Iterable[str]) -> tuple[Hook, ...]:
        """Hook that makes links in the container, each ``target::link``; empty without links."""
        arguments = tuple(text for link in links for text in ("--link", link))
        return (self.hook(CREATE_SYMLINKS, *arguments),) if arguments else ()

    def common(self, *, driver_version: str, folders: Iterable[str]) -> tuple[Hook, ...]:
        """Hooks for every container: forward compatibility, and after it the loader cache.

        ``folders``: directories in the container that the cache is to have.
        """
        ldconfig = () if self.ldconfig == LDCONFIG_PATHS[0] else ("--ldconfig-path", self.ldconfig)
        arguments = tuple(text for folder in folders for text in ("--folder", folder))
        update = self.hook(UPDATE_LDCACHE, *ldconfig, *arguments)
        if ENABLE_CUDA_COMPAT not in self.known:
            return (update,)
        version = f"--host-driver-version={driver_version}"
        return (self.hook(ENABLE_CUDA_COMPAT, version), update)


@dataclass(frozen=True)
class DriverFiles:
    """The driver's files that were found.

    ``directories``: library directories that exist, as :func:`library_directories` returns them.
    ``programs``: by name, path on the host. ``opencl``: path on the host, None without that file.
    ``hook``: None if the node has none that can be used. ``program_directories``: directories below
    the driver's root in which programs were looked for.
    """

    version: str
    roots: Roots
    directories: dict[str, Path]
    libraries: tuple[Library, ...]
    programs: dict[str, str]
    opencl: str | None
    hook: HookProgram | None
    architecture: Architecture
    program_directories: tuple[str, ...] = PROGRAM_DIRECTORIES

    @property
    def lacking(self) -> str:
        """Programs that containers do not get, with the remedy; empty if all are there."""
        missing = [name for name in PROGRAMS if name not in self.programs]
        return f"containers get no {', '.join(missing)}: {self.searched}" if missing else ""

    @property
    def searched(self) -> str:
        """Clause on where a missing program was looked for, with the remedy."""
        return (
            f"not found below {self.roots.driver_seen} (in {', '.join(self.program_directories)}); "
            "name its directory with --program-directories, install it with the driver"
        )

    def seen(self, path: str) -> Path:
        """Path at which this program finds a file of the host."""
        is_seen_alike = self.roots.driver_root.is_relative_to(self.roots.host)
        return Path(path) if is_seen_alike else self.roots.on_host(path)

    @property
    def cuda(self) -> Library | None:
        """The library libcuda, without which the others are of no use; None if it is missing."""
        return next((library for library in self.libraries if library.stem == "libcuda"), None)

    @cached_property
    def common(self) -> Edits:
        """Edits that every container gets, whatever its device: those for compute and utilities."""
        programs = (Mount(path, f"/usr/bin/{n}") for n, path in self.programs.items())
        opencl = [Mount(self.opencl, f"/etc/{_OPENCL}")] if self.opencl else []
        base = self._of(Role.COMPUTE)
        hooks = base.hooks
        if self.hook is not None:
            folders = self.architecture.container_directories
            hooks += self.hook.common(driver_version=self.version, folders=folders)
        return Edits(env=ENV, mounts=(*base.mounts, *programs, *opencl), hooks=hooks)

    @cached_property
    def video(self) -> Edits:
        """Additions that decoders and encoders need."""
        return self._of(Role.VIDEO)

    def graphics(self) -> Edits:
        """Additions that OpenGL, EGL, Vulkan and X.Org need."""
        base = self._of(Role.GRAPHICS)
        return Edits(mounts=(*base.mounts, *self._graphics_files()), hooks=base.hooks)

    def _of(self, role: Role) -> Edits:
        libraries = [library for library in self.libraries if library.role is role]
        mounts = library_mounts(libraries, architecture=self.architecture, links=self.hook is None)
        links = library_links(libraries, self.architecture)
        hooks = self.hook.symlinks(links) if self.hook is not None else ()
        return Edits(mounts=tuple(mounts), hooks=hooks)

    def _graphics_files(self) -> Iterator[Mount]:
        """Mounts for graphics besides libraries: configuration files, and modules of X.Org and GBM.

        Configuration is mounted to where loaders look for it, modules of X.Org to their place on
        the host.
        """
        vulkan = (*_VULKAN, f"vulkan/icd.d/nvidia_icd.{self.architecture.name}.json")
        for names, place in ((_SHARED, "/usr/share"), (vulkan, "/etc")):
            for name in names:
                if found := _found(self.roots, name, CONFIGURATION_DIRECTORIES):
                    yield Mount(found[1], f"{place}/{name}")
        modules = {"nvidia_drv.so": "nvidia_drv.so"}
        modules[f"libglxserver_nvidia.so.{self.version}"] = "libglxserver_nvidia.so"
        folders = [
            f"{library}/{xorg}".lstrip("/") for library in self.directories for xorg in _XORG
        ]
        for file, name in modules.items():
            if found := _found(self.roots, file, folders):
                yield Mount(found[1], f"{found[0]}/{name}")
        # GBM's backend is the allocator library under another name.
        for library in self.libraries:
            if library.stem == _ALLOCATOR:
                for directory in self.architecture.container_directories:
                    yield Mount(library.path, f"{directory}/{_GBM}")


class DriverSearch:
    """Finds the driver's files, and again when a directory has changed. Thread-safe.

    A driver container takes its files away when it restarts, and brings others after an upgrade.

    ``directories``: library directories below the driver's root. ``programs``: directories there in
    which programs are looked for before those beside libraries, and PROGRAM_DIRECTORIES. ``hook``:
    ``auto``, ``never`` or the path of the program on the host.
    """

    def __init__(
        self,
        roots: Roots,
        *,
        directories: Sequence[str] = LIBRARY_DIRECTORIES,
        programs: Sequence[str] = (),
        hook: str = AUTO,
        architecture: Architecture | None = None,
    ) -> None:
        self._roots = roots
        self.directories = tuple(directories)
        self.hook = hook
        self._programs = tuple(programs)
        self._architecture = architecture or this_architecture()
        self._lock = threading.Lock()
        self._known: DriverFiles | None = None
        self._watched: tuple[str, ...] = ()
        self._mark: list[_Mark] = []

    def find(self, driver_version: str) -> DriverFiles:
        """The files of this driver version as they are now; never raises."""
        with self._lock:
            root, known = self._roots.driver_seen, self._known
            if (
                known is None
                or (known.version, known.roots.driver_seen) != (driver_version, root)
                or self._mark != _marks(self._watched)
            ):
                roots = self._roots.now()
                directories = library_directories(roots, self.directories)
                programs = tuple(
                    dict.fromkeys((*self._programs, *_beside(directories), *PROGRAM_DIRECTORIES))
                )
                places = self._places(root, directories, programs)
                self._watched, self._mark = _watched(map(str, places))
                opencl = _found(roots, _OPENCL, CONFIGURATION_DIRECTORIES)
                # A distribution's script starts the program at a path that a container lacks.
                found = {
                    name: _found(roots, name, self._programs)
                    or _found(roots, name, programs, fits=_is_compiled)
                    or _found(roots, name, programs)
                    for name in PROGRAMS
                }
                known = self._known = DriverFiles(
                    version=driver_version,
                    roots=roots,
                    directories=directories,
                    libraries=find_libraries(
                        roots, directories, driver_version, self._architecture
                    ),
                    programs={name: file[1] for name, file in found.items() if file},
                    opencl=opencl[1] if opencl else None,
                    hook=find_hook(self._roots, self.hook),
                    architecture=self._architecture,
                    program_directories=programs,
                )
            return known

    def check(self, files: DriverFiles) -> None:
        """Check that a container with these files would start and find the driver.

        Raises:
            HostError: it would not; says what is missing, and the remedy.
        """
        if problem := self.missing_libraries(files):
            raise HostError(problem)
        if self.hook not in {AUTO, NEVER} and files.hook is None:
            raise HostError(
                f"--cdi-hook={self.hook} is no nvidia-cdi-hook or nvidia-ctk that this node can "
                "run (it has to be executable, know update-ldcache and create-symlinks, and find "
                f"one of {', '.join(LDCONFIG_PATHS)}); install nvidia-container-toolkit, or take "
                "--cdi-hook=auto"
            )

    def missing_libraries(self, files: DriverFiles) -> str:
        """Reason why a container would find no driver, with the remedy; empty if it finds one."""
        if files.cuda is not None:
            return ""
        return (
            f"found no libcuda.so.{files.version} for {files.architecture.name} below "
            f"{files.roots.driver_seen} (in {', '.join(self.directories)}, and what its "
            "ld.so.cache names); install the driver's libraries of that version, or name their "
            "root with --driver-root or their directory with --library-directories"
        )

    def _places(
        self, root: Path, directories: dict[str, Path], programs: Sequence[str]
    ) -> Iterator[Path]:
        """Directories and files on which the result of :meth:`find` depends."""
        yield from directories.values()
        for place in (*self.directories, *CACHES, *programs, f"etc/{_OPENCL}"):
            yield inside(root, place)
        if self.hook != NEVER:
            for path in (self.hook, *LDCONFIG_PATHS, *HOOK_PATHS):
                yield inside(self._roots.host, path)


def find_hook(roots: Roots, choice: str) -> HookProgram | None:
    """The hook program that ``choice`` names: ``auto``, ``never`` or a path on the host.

    None for ``never``, and if the program is absent, is not executable, lacks update-ldcache or
    create-symlinks (very old versions), or the host has no ldconfig for it.
    """
    if choice == NEVER:
        return None
    ldconfig = next((p for p in LDCONFIG_PATHS if inside(roots.host, p).is_file()), None)
    if ldconfig is None:
        return None
    for path in HOOK_PATHS if choice == AUTO else (choice,):
        known = _known_hooks(inside(roots.host, path))
        if {UPDATE_LDCACHE, CREATE_SYMLINKS} <= known:
            return HookProgram(path, ldconfig, known)
    return None


COMPUTE, VIDEO = "compute", "video"
"""Names of the common spec's devices: ``compute`` for every container, ``video`` for decoders and
encoders in addition. Kubelet keeps these names, which a later version must therefore know too."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The driver's files and control nodes, which every container needs in part.

    ``roots``: the roots by which both were found.
    """

    files: DriverFiles
    control: Edits
    roots: Roots = field(compare=False)


class DriverSpec:
    """CDI spec on disk with the edits that all claims of a node have in common. Thread-safe.

    A container runtime reads all specs again whenever a file comes or goes. So the common edits are
    in one file, which keeps the claims' files small. The common spec gives no access to a GPU: it
    has no GPU's device node and no MIG capability.

    ``find``: looks for what containers need; raises HostError if a part is missing.
    """

    def __init__(self, driver: str, store: SpecStore, find: Callable[[], Needs]) -> None:
        self._kind = driver_kind(driver)
        self._store = store
        self._find = find
        self._built: tuple[Needs, Spec] | None = None
        self._writing = threading.Lock()

    def ensure(self, needs: Needs) -> None:
        """Have the file on disk with ``needs``; if its content differs, it is written.

        It is then written with what is found now, which may be newer than ``needs``.

        Raises:
            HostError: the file cannot be written, or a part that containers need is missing now.
        """
        try:
            if self._store.has_common(self.build(needs)):
                return
            with self._writing:
                self._store.write_common(self.build(self._find()))
        except CdiError as error:
            raise HostError(str(error)) from error

    def remove(self) -> None:
        """Remove the file; it is no error if there is none.

        Raises:
            HostError: the file cannot be removed.
        """
        try:
            self._store.remove_common()
        except CdiError as error:
            raise HostError(str(error)) from error

    def qualified(self, names: Iterable[str]) -> tuple[str, ...]:
        """CDI names of the spec's devices with these ``names``."""
        return tuple(f"{self._kind}={name}" for name in names)

    def build(self, needs: Needs) -> Spec:
        """The spec with ``needs``; the same object as before if these have not changed."""
        built = self._built
        if built is None or built[0].files is not needs.files or built[0].control != needs.control:
            # CDI refuses a device without edits, as VIDEO would be without libraries for video.
            devices = {COMPUTE: Edits(env=ENV), VIDEO: joined(Edits(env=ENV), needs.files.video)}
            spec = Spec(
                kind=self._kind,
                devices=tuple(Device(name, edits) for name, edits in devices.items()),
                common=joined(needs.control, needs.files.common),
            )
            built = self._built = (needs, spec)
        return built[1]


def _beside(directories: Iterable[str]) -> tuple[str, ...]:
    """Directories of programs beside directories of libraries: ``bin`` beside ``lib64``."""
    above = (up for d in directories for up in (Path(d).parent, Path(d).parent.parent))
    return tuple(dict.fromkeys(str(up / "bin").lstrip("/") for up in above))


def _is_compiled(path: Path) -> bool:
    return read_library(path) is not None


def _found(
    roots: Roots,
    name: str,
    directories: Iterable[str],
    *,
    fits: Callable[[Path], bool] = Path.is_file,
) -> tuple[str, str] | None:
    """The first of directories below the driver's root that has a file, and its path on the host.

    None if no directory has one that ``fits``. Links are followed in neither the first nor, as
    :func:`located` says, left in the second.
    """
    for directory in directories:
        at = located(roots, f"{directory}/{name}")
        if at is not None and fits(at[0]):
            return f"/{directory}", at[1]
    return None


def _known_hooks(program: Path) -> frozenset[str]:
    """Those of HOOK_NAMES that are in the program's file, or in the program that it wraps.

    A version that does not know a name refuses it, and the container would not start.
    """
    for path in (program.with_name(f"{program.name}.real"), program):
        try:
            if path.is_file() and os.access(path, os.X_OK):
                return _named_in(path)
        except (OSError, ValueError):  # an empty file cannot be mapped
            continue
    return frozenset()


def _named_in(path: Path) -> frozenset[str]:
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return frozenset(name for name in HOOK_NAMES if content.find(name.encode()) >= 0)


_Mark = tuple[int, ...] | None


def _watched(places: Iterable[str]) -> tuple[tuple[str, ...], list[_Mark]]:
    """Paths that change whenever one of ``places`` does, and their marks.

    A place that is not there is replaced by the nearest directory above it, in which it would
    appear. The marks are older than the choice of paths, so that no change is missed.
    """
    wanted = tuple(places)
    watched: tuple[str, ...] = ()
    while True:
        marks = _marks(watched)
        if watched == (watched := tuple(dict.fromkeys(map(_nearest, wanted)))):
            return watched, marks


def _nearest(path: str) -> str:
    """The path itself if it exists, else the nearest directory above it that does."""
    while path != "/" and not os.path.exists(path):  # noqa: PTH110 - as all of these
        path = os.path.dirname(path)  # noqa: PTH120
    return path


def _marks(paths: Iterable[str]) -> list[_Mark]:
    """Marks of directories and files; a mark changes when its path's content does.

    None is the mark of a path that is not there.
    """
    marks: list[_Mark] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - some at each look
        except OSError:
            marks.append(None)
        else:
            # The time alone would not show the second of two changes within a tick of the clock.
            marks.append((status.st_ino, status.st_mtime_ns, status.st_size, status.st_nlink))
    return marks
