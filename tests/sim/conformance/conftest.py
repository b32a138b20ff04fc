"""The cases on the embedded server, or on the one that CONFORMANCE_KUBECONFIG names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sim.apiserver.running import running_server
from tests.sim.conformance.helpers.fixtures import api, cleanup, namespace, namespaces, unique

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["api", "cleanup", "namespace", "namespaces", "unique"]


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if given := os.environ.get("CONFORMANCE_KUBECONFIG"):
        yield Path(given)
        return
    with running_server(tmp_path_factory.mktemp("api")) as server:
        yield server.kubeconfig
