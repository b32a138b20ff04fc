"""One API server stand-in for all tests of the stand-ins; each test starts with an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.kube.client import KubeApi
from tests.helpers.folders import short_folder
from tests.sim.standins import api_server, wipe


@pytest.fixture(scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as api:
        yield api


@pytest.fixture
def api(_server: KubeApi) -> Iterator[KubeApi]:
    yield _server
    wipe(_server)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for the names of sockets."""
    with short_folder() as directory:
        yield directory
