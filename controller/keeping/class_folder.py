"""Directory of files that configure classes of nodes, as the chart mounts their ConfigMaps."""

from __future__ import annotations

import logging
from pathlib import Path

from dra.gpu.layouts import SUFFIXES, Classes, read_files

_log = logging.getLogger(__name__)


class ClassFolder:
    """The files of ``folder``, in which kubelet exchanges files under way. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failure = ""

    def read(self) -> Classes | None:
        """Content of all files, valid or not; None while the directory cannot be read."""
        try:
            files = sorted(p for p in self._folder.iterdir() if _counts(p))
        except OSError as error:
            if str(error) != self._failure:
                _log.error("classes of nodes cannot be read: %s", error)
            self._failure = str(error)
            return None
        self._failure = ""
        return read_files((path.name, _content(path)) for path in files)


def _counts(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _content(path: Path) -> bytes | OSError:
    try:
        return path.read_bytes()
    except OSError as error:
        return error
