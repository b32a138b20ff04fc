"""An API server for controllers that run as processes; what all clusters of tests share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dra.allocator.scoring import geometry_index
from dra.allocator.scoring.moves import MoveTable
from tests.controller.site import Ground, Site


@pytest.fixture(scope="session", autouse=True)
def tables() -> Iterator[None]:
    """The table of a geometry, the dear part of a cluster, is made once: it says what is so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry_index, "MoveTable", functools.cache(MoveTable))
        yield


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


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """It has an API server of its own, which has counted nothing yet and may be killed."""
    with closing(Ground(tmp_path)) as ground, closing(Site(ground, tmp_path)) as site:
        yield site
    sys.stderr.write(site.logs())
