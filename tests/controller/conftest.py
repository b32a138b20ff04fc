"""An API server for controllers that run as processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.site import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path)
    try:
        yield running
    finally:
        running.close()
        sys.stderr.write(running.logs())  # shown for tests that fail
