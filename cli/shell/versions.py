"""Version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """The version, or why there is none."""
    try:
        return installed("dra-driver-nvidia-mig")
    except PackageNotFoundError:
        return "unknown: the package is not installed"
