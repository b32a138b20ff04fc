"""A node that starts, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sim.nvml
from tests.kubeletplugin.claims.recovery.startbench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path)
    sim.nvml.uninstall()
