"""Record of the registered DRA drivers: a file below kubelet's root, read by waiting programs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_FILE = "registered_drivers"


def write_registered(root: Path, drivers: Iterable[str]) -> None:
    """Replaces the record."""
    (root / _FILE).write_text("".join(f"{driver}\n" for driver in sorted(drivers)))


def is_registered(root: Path, driver: str) -> bool:
    """True if the kubelet of this root has a plugin of the driver."""
    try:
        return driver in (root / _FILE).read_text().splitlines()
    except FileNotFoundError:
        return False
