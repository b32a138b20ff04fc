"""Folders in memory where there are any: these tests sync files thousands of times."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubeletplugin.conftest import kubeconfig, make_rig, rig

__all__ = ["kubeconfig", "make_rig", "rig"]

_SHM = Path("/dev/shm")
MEMORY = _SHM if os.access(_SHM, os.W_OK) else None


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder with a short path."""

    path = Path(tempfile.mkdtemp(prefix="mig-", dir=MEMORY))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def folder(short_folder: Path) -> Path:
    """Where ``make_rig`` keeps its nodes."""
    return short_folder
