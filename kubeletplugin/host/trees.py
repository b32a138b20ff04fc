"""Folders that containers may write to, and how they are removed."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; no link in it is followed, be it put there meanwhile.

    ``shutil.rmtree`` would do, but for the tests that count each change of the disk.

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: something in it cannot be removed.
    """
    for _, directories, files, inside in os.fwalk(folder, topdown=False, onerror=_raise):
        for name in files:
            os.unlink(name, dir_fd=inside)
        for name in directories:
            found = os.stat(name, dir_fd=inside, follow_symlinks=False)
            remove = os.rmdir if stat.S_ISDIR(found.st_mode) else os.unlink
            remove(name, dir_fd=inside)
    folder.rmdir()


def _raise(error: OSError) -> None:
    raise error
