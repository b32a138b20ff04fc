"""Witnesses that a slice is gone: its capability's entry in /proc and the directory around it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from kubeletplugin.check.report import Gpu
from kubeletplugin.gpus.ownership.belonging import Continuity
from kubeletplugin.gpus.ownership.entrywatch import still_there
from kubeletplugin.host.roots import Roots


def folder_of(roots: Roots, gpu: Gpu, *, gi_id: int, ci_id: int) -> Path:
    """The directory that the kernel module keeps for a compute instance."""
    place = f"gpu{gpu.minor}/mig/gi{gi_id}/ci{ci_id}"
    return roots.on_host(f"/proc/driver/nvidia/capabilities/{place}")


class Descriptor:
    """An open descriptor of a slice's capability entry, read again when the slice is gone."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "access"
        try:
            self._file: int | None = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def read(self) -> str:
        """``readable``, or the name of what the read answers; closes it."""
        if self._file is None:
            return f"open: there is no {self._path}"
        try:
            os.read(self._file, 1)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
        finally:
            os.close(self._file)
        return "readable"


class Directory:
    """The directory of a slice's entry, held open and marked as the plugin marks it."""

    def __init__(self, folder: Path) -> None:
        self._why = ""
        self._file: int | None = None
        try:
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_ISVTX)
            marked = folder.stat().st_mode & stat.S_ISVTX
            self._why = "" if marked else "open: a mark on it does not stay"
            self._file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._why = f"open: {folder}: {error.strerror}"

    def tell(self) -> str:
        """``goes`` if it went with the slice, ``stays`` if not; closes it."""
        if self._file is None:
            return self._why
        try:
            gone = still_there(self._file) is Continuity.OTHER
        finally:
            os.close(self._file)
        return self._why or ("goes" if gone else "stays")
