"""An API server for controllers that run as processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.controller.helpers.site import Ground, Site


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    running = Ground(tmp_path_factory.mktemp("ground"))
    yield running
    running.close()


@pytest.fixture
def site(ground: Ground, tmp_path: Path) -> Iterator[Site]:
    """It starts with an empty API server."""
    with closing(Site(ground, tmp_path)) as site:
        yield site
    ground.wipe()
    sys.stderr.write(site.logs())  # shown for tests that fail
