"""An API server for controllers that run as processes; what all clusters of tests share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.allocator.scoring import geometry_index
from dra.allocator.scoring.moves import MoveTable
from tests.controller.site import Site


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    """The table of a geometry, the dear part of a cluster, is made once: it says what is so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry_index, "MoveTable", functools.cache(MoveTable))
        yield


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path)
    try:
        yield running
    finally:
        running.close()
        sys.stderr.write(running.logs())  # shown for tests that fail
