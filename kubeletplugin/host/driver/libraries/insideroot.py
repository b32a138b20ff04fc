"""Paths inside of a root that is not this program's own.

An absolute link of the host, such as ``/usr -> /somewhere/usr``, leads out of the place where this
program sees the host; it has to be followed as a program whose ``/`` is that root would.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOST_LINKS = 40
"""Limit of Linux on the links followed in one path."""


def inside(root: Path, path: str) -> Path:
    """Path to which ``path`` of ``root`` leads, links followed; it may be absent. Never raises."""
    return Path(followed(str(root), path))


def followed(root: str, path: str) -> str:
    """The same as text, for what is looked at for each claim."""
    at = root
    left = _parts(path)
    links = 0
    while left:
        part = left.pop()
        if part == "..":
            at = at if at == root else os.path.dirname(at)  # noqa: PTH120
            continue
        step = f"{at.rstrip('/')}/{part}"
        try:
            target = os.readlink(step)  # noqa: PTH115
        except OSError:
            at = step
            continue
        links += 1
        if links > _MOST_LINKS:
            return step
        if target.startswith("/"):
            at = root
        left += _parts(target)
    return at


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in {"", "."}]
