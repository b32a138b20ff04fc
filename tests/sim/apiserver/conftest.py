"""A server of each test module's own, since these tests change how it behaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.apiserver.running import running_server
from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sim.apiserver.running import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    """The module's server."""
    client = Api(server.kubeconfig)
    yield client
    client.close()
