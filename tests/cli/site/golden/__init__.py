"""Outputs that were looked at once and have to stay. ``MIG_GOLDEN=write`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).parent


def check(name: str, shown: str) -> None:
    """Compare with ``<name>.txt``."""
    path = HERE / f"{name}.txt"
    if os.environ.get("MIG_GOLDEN") == "write":
        path.write_text(shown)
    assert shown == path.read_text(), (
        f"tests/cli/site/golden/{path.name} differs: MIG_GOLDEN=write writes it anew; read the diff"
    )
