"""The driver's files of this node, and what of them a container gets by what its device can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cdi.spec import Edits, Mount
from kubeletplugin.host.driver.graphics import gbm_mounts, graphics_mounts
from kubeletplugin.host.driver.hooks import HookProgram
from kubeletplugin.host.driver.libraries.architecture import Architecture
from kubeletplugin.host.driver.libraries.libraries import Library
from kubeletplugin.host.driver.libraries.librarymounts import (
    container_directories,
    library_links,
    library_mounts,
)
from kubeletplugin.host.driver.libraries.libraryroles import Role

OPENCL = "OpenCL/vendors/nvidia.icd"
ENV = ("NVIDIA_VISIBLE_DEVICES=void",)
"""Keeps the NVIDIA runtime, where it is the default one, from adding devices of its own."""


@dataclass(frozen=True)
class DriverFiles:
    """Files found. ``directories`` are those that exist, ``driver_root`` is the host's view.

    ``opencl`` and ``programs`` (name to path) are paths below the driver's root.
    """

    version: str
    root: Path
    driver_root: Path
    directories: dict[str, Path]
    libraries: tuple[Library, ...]
    programs: dict[str, str]
    opencl: str | None
    hook: HookProgram | None
    architecture: Architecture

    @property
    def cuda(self) -> Library | None:
        """libcuda, without which there is no use in anything else."""
        return next((library for library in self.libraries if library.stem == "libcuda"), None)

    @cached_property
    def common(self) -> Edits:
        """Libraries that every container gets, whatever its device: compute and utilities."""
        programs = (self._mount(path, f"/usr/bin/{n}") for n, path in self.programs.items())
        opencl = [self._mount(self.opencl, f"/etc/{OPENCL}")] if self.opencl else []
        base = self._of(Role.COMPUTE)
        hooks = base.hooks
        if self.hook is not None:
            folders = container_directories(self.architecture)
            hooks += self.hook.common(driver_version=self.version, folders=folders)
        return Edits(env=ENV, mounts=(*base.mounts, *programs, *opencl), hooks=hooks)

    @cached_property
    def video(self) -> Edits:
        """Additions that decoders and encoders need."""
        return self._of(Role.VIDEO)

    def graphics(self) -> Edits:
        """Additions that OpenGL, EGL, Vulkan and X.Org need."""
        base = self._of(Role.GRAPHICS)
        files = graphics_mounts(
            self.root,
            driver_root=self.driver_root,
            directories=self.directories,
            version=self.version,
            architecture=self.architecture,
        )
        gbm = gbm_mounts(
            self.libraries, driver_root=self.driver_root, architecture=self.architecture
        )
        return Edits(mounts=(*base.mounts, *files, *gbm), hooks=base.hooks)

    def _of(self, role: Role) -> Edits:
        libraries = [library for library in self.libraries if library.role is role]
        mounts = library_mounts(
            libraries,
            driver_root=self.driver_root,
            architecture=self.architecture,
            links=self.hook is None,
        )
        links = library_links(libraries, self.architecture)
        hooks = self.hook.symlinks(links) if self.hook is not None else ()
        return Edits(mounts=tuple(mounts), hooks=hooks)

    def _mount(self, path: str, container_path: str) -> Mount:
        return Mount(str(self.driver_root / path.lstrip("/")), container_path)
