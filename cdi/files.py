"""Files that are written whole or not at all, even when the power fails.

The node program writes its journal and its names of GPUs so, too: whatever a restart must find.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


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
    # Text and descriptors: a Path and a buffer take longer than the system's calls.
    target = str(path)
    name = f"{target}.{os.getpid()}{TEMPORARY_SUFFIX}"
    descriptor = os.open(name, _FLAGS, mode)
    try:
        with io.FileIO(descriptor, "w") as file:
            _write_all(file, data)
            os.fchmod(descriptor, mode)
            if synced:
                os.fsync(descriptor)
        os.replace(name, target)  # noqa: PTH105 - see above
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _write_all(file: io.FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


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
