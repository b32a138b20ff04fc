"""Files that are written whole or not at all, even when the power fails.

The node program also writes its journal and its GPUs' names by this module.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace the content of ``path`` by ``data``, to last even if the power fails right after.

    Raises:
        OSError: ``path`` has not changed, unless only the last step failed, the directory's sync.
    """
    write_whole(path, data, mode=mode, synced=True)
    sync_directory(path.parent)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, synced: bool = False) -> None:
    """Replace the content of ``path`` by ``data``, by a temporary file that is renamed.

    A reader finds the old or the new content, however this process ends. After a power failure the
    old content may be back; without ``synced`` the content may also be damaged. The temporary name
    begins with the file's own and ends in ``.tmp``, which no CDI runtime reads. Only one process
    may write to a path, and only one of its threads at a time.

    Raises:
        OSError: ``path`` has not changed.
    """
    # Text and descriptors are quicker: a Path and a buffer take longer than the system calls.
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
