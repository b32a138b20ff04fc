"""A server of each test module's own, since these tests change how it behaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.apiserver.running import running_server
from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.apiserver.running import Server


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Api]]:
    """Start a server with some flags; gives a client of it."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def begin(*flags: str) -> Api:
            directory = tmp_path_factory.mktemp("api")
            server: Server = stack.enter_context(running_server(directory, *flags))
            client = Api(server.kubeconfig)
            stack.callback(client.close)
            return client

        yield begin


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
