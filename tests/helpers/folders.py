"""Temporary folders with paths short enough for sockets in them.

In memory where that is to be had: what the node plugin writes it syncs, thousands of times here.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHM = Path("/dev/shm")
_ENOUGH_BYTES = 2 << 30


def _in_memory() -> bool:
    """True if memory has room, and may hold programs: containers have little."""
    if not os.access(_SHM, os.W_OK):
        return False
    state = os.statvfs(_SHM)
    return state.f_bavail * state.f_frsize >= _ENOUGH_BYTES and not state.f_flag & os.ST_NOEXEC


MEMORY = _SHM if _in_memory() else Path("/tmp")


@contextmanager
def short_folder() -> Iterator[Path]:
    """An empty folder; it is gone at the end."""
    path = Path(tempfile.mkdtemp(prefix="mig-", dir=MEMORY))
    try:
        yield path
    finally:
        unmount_below(path)
        shutil.rmtree(path, ignore_errors=True)


def mounts_below(folder: Path) -> list[str]:
    """Mounts in a folder, which only root can make."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def unmount_below(folder: Path) -> None:
    """End what is mounted in a folder, also while somebody has files of it open."""
    for mounted in reversed(mounts_below(folder)):
        subprocess.run(["umount", "--lazy", mounted], check=True)


def can_make_nodes(folder: Path) -> bool:
    """True if the tests may make device nodes; one is left in ``folder``."""
    try:
        os.mknod(folder / "node", stat.S_IFCHR | 0o600, os.makedev(195, 255))
    except OSError:
        return False
    return True
