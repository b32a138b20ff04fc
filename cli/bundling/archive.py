"""Archive of a support bundle: a compressed tar file that appears whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

from cli.bundling.contents import File


def write(path: Path, files: Iterable[File], *, folder: str, seconds: int) -> None:
    """Write ``files`` below ``folder`` into a new file, readable by its owner alone.

    Args:
        path: of the archive.
        files: read while it is written, so that no more than one is held.
        folder: name of the one directory in it.
        seconds: time of every file, since 1970.

    Raises:
        OSError: it cannot be written; nothing is left then.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with (
            os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for file in files:
                entry = tarfile.TarInfo(f"{folder}/{file.name}")
                entry.size, entry.mtime, entry.mode = len(file.content), seconds, 0o600
                archive.addfile(entry, io.BytesIO(file.content))
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
