"""Temporary folders with paths short enough for sockets in them.

In memory where that is to be had: what the node plugin writes it syncs, thousands of times here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHM = Path("/dev/shm")
MEMORY = _SHM if os.access(_SHM, os.W_OK) else Path("/tmp")


@contextmanager
def short_folder() -> Iterator[Path]:
    """An empty folder; it is gone at the end."""
    path = Path(tempfile.mkdtemp(prefix="mig-", dir=MEMORY))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
