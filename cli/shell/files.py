"""Files of manifests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cli.shell.exits import CliError, Exit

_SUFFIXES = (".yaml", ".yml", ".json")


def read_files(names: list[str]) -> Iterator[tuple[str, str]]:
    """Names and contents; a directory stands for the manifests below it, ``-`` for the input."""
    for name in names:
        try:
            if name == "-":
                yield "-", sys.stdin.read()
                continue
            path = Path(name)
            below = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES)
            for file in below if path.is_dir() else [path]:
                yield str(file), file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(Exit.NOT_FOUND, f"{name} cannot be read: {error}") from error
