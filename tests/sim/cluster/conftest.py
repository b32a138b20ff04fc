"""A short temporary directory for programs that put sockets into it, and who uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.folders import short_folder


@pytest.fixture
def short_temporary() -> Iterator[Path]:
    with short_folder() as directory:
        yield directory


def processes_in(temporary: Path) -> list[str]:
    """Command lines of all processes that name the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{temporary}/" in line:
            found.append(line)
    return found
