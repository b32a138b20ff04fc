"""Folders that containers may write to, and how they are removed.

A tenant may nest folders in them tens of thousands deep, and make millions of files: one folder is
open at a time besides the outermost, none calls for the next, and names are read in portions.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from itertools import islice
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = 1000


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; no link in it is followed, be it put there meanwhile.

    Raises:
        FileNotFoundError: there is no such folder.
        OSError: something in it cannot be removed.
    """
    top = os.open(folder, _FLAGS)
    try:
        while portion := _portion(top):
            for name, is_directory in portion:
                with suppress(FileNotFoundError):
                    if is_directory:
                        _flatten(name, top)
                    else:
                        os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    folder.rmdir()


def _flatten(name: str, top: int) -> None:
    """Remove a folder in ``top``, where the folders in it are put."""
    inside = os.open(name, _FLAGS, dir_fd=top)
    try:
        while portion := _portion(inside):
            for inner, is_directory in portion:
                with suppress(FileNotFoundError):
                    if is_directory:
                        # A name that nobody has taken: what is there would be in the way.
                        new = f".{secrets.token_hex(8)}"
                        os.rename(inner, new, src_dir_fd=inside, dst_dir_fd=top)
                    else:
                        os.unlink(inner, dir_fd=inside)
    finally:
        os.close(inside)
    os.rmdir(name, dir_fd=top)


def _portion(folder: int) -> list[tuple[str, bool]]:
    """Some of the names in a folder, each with whether it is a folder; none once it is empty."""
    with os.scandir(folder) as found:
        return [(e.name, e.is_dir(follow_symlinks=False)) for e in islice(found, _AT_ONCE)]
