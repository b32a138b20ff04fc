"""Fixtures of the cases; a conftest imports them beside its own `kubeconfig`."""

from __future__ import annotations

import itertools
import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SESSION = uuid.uuid4().hex[:6]
_SERIAL = itertools.count(1)


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[Api]:
    client = Api(kubeconfig)
    yield client
    client.close()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses: for what lies in no namespace."""
    return f"t{_SESSION}-{os.getpid()}-{next(_SERIAL)}"


@pytest.fixture(scope="session")
def namespaces(api: Api) -> Iterator[list[str]]:
    """The namespaces of all tests; they go at the end, since emptying them keeps a server busy."""
    made: list[str] = []
    yield made
    for name in made:
        api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def namespace(api: Api, namespaces: list[str], unique: str) -> str:
    """A namespace of the test's own."""
    api.post("/api/v1/namespaces", {"metadata": {"name": unique}}).ok()
    namespaces.append(unique)
    return unique


@pytest.fixture
def cleanup(api: Api) -> Iterator[Callable[[str], str]]:
    """Remember a path to delete after the test; gives the path back."""
    paths: list[str] = []

    def remember(path: str) -> str:
        paths.append(path)
        return path

    yield remember
    for path in reversed(paths):
        api.delete(path)
