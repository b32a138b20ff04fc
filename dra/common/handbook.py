"""Addresses of the handbook's pages, for messages: their readers may have no copy of its source."""

from __future__ import annotations

from typing import Final

HOMEPAGE: Final = "https://github.com/dra-driver-nvidia-mig/dra-driver-nvidia-mig"
HANDBOOK: Final = f"{HOMEPAGE}/blob/main/docs"


def page(name: str) -> str:
    """The address of ``troubleshooting.md`` or ``troubleshooting.md#it-does-not-go``."""
    return f"{HANDBOOK}/{name}"
