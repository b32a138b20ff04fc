"""Files of a directory that configure classes of nodes, read anew when one has changed.

A file is a ``MigNodeClass``, called like its class, or one of mig-parted's, whose layouts all
classes can have. The directory is a mounted ConfigMap, where kubelet exchanges files under way.
"""

from __future__ import annotations

import logging
from pathlib import Path

from dra.gpu.layouts import SUFFIXES, Classes, read_files

_log = logging.getLogger(__name__)


class ClassFiles:
    """The files of ``folder``. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: object = None
        self._known = Classes({}, {}, {})

    def read(self) -> Classes:
        """Content of the files now. Never raises: what is wrong with them is said in it."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp, self._known = stamp, read_classes(self._folder)
            for name, problem in self._known.problems.items():
                _log.error("class %s of nodes: %s", name, problem)
        return self._known

    def _look(self) -> object:
        try:
            found = [(p.name, p.stat()) for p in _files(self._folder)]
        except OSError as error:
            return str(error)
        return [(name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in found]


def read_classes(folder: Path) -> Classes:
    """Content of all files of a directory, valid or not."""
    try:
        files = _files(folder)
    except OSError as error:
        return Classes({}, {}, {"default": f"{folder}: {error.strerror or error}"})
    return read_files((path.name, _content(path)) for path in files)


def _content(path: Path) -> bytes | OSError:
    try:
        return path.read_bytes()
    except OSError as error:
        return error


def _files(folder: Path) -> list[Path]:
    return sorted(
        p
        for p in folder.iterdir()
        if p.suffix in SUFFIXES and not p.name.startswith(".") and p.is_file()
    )
