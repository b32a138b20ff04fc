"""Files that are written whole or not at all, even when the power fails.

The node program writes its journal and its names of GPUs so, too: whatever a restart must find.
"""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``, also if the power fails right after.

    Raises:
        OSError: nothing of ``path`` has changed, unless it was the last step, the directory's sync.
    """
    write_whole(path, data, mode=mode, synced=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, synced: bool = False) -> None:
    """Replace ``path`` by ``data``: written beside it and renamed.

    Whoever reads finds the old or the new, however the process ends. When the power fails it may be
    the old one again, or without ``synced`` what the file system makes of it.
    The temporary name begins with the file's own and ends in ``.tmp``, which no CDI runtime reads.
    One process writes to a path, and one thread of it at a time.

    Raises:
        OSError: nothing of ``path`` has changed.
    """
    name = f"{path}.{os.getpid()}{TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if synced:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Make renames and removals in ``directory`` durable.

    Raises:
        OSError: the directory cannot be opened or synced.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
