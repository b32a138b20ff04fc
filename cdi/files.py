"""Files that are written whole or not at all, even when the power fails.

The node program writes its journal and its names of GPUs so, too: whatever a restart must find.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: written beside it, synced, renamed, the directory synced.

    The temporary name begins with the file's own and ends in ``.tmp``, which no CDI runtime reads.

    Raises:
        OSError: nothing of ``path`` has changed, unless it was the last step, the directory's sync.
    """
    descriptor, name = tempfile.mkstemp(
        prefix=f"{path.name}.", suffix=TEMPORARY_SUFFIX, dir=path.parent
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


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
