"""``kubectl-mig`` as a user runs it, against the embedded API server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli.program import main
from tests.cli.world import World
from tests.dra.kube.conftest import certificates, tls_stub
from tests.sim.apiserver.running import running_server

__all__ = ["certificates", "tls_stub"]


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Mig = Callable[..., Ran]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a running server."""
    with running_server(tmp_path_factory.mktemp("apiserver")) as running:
        yield running.kubeconfig


@pytest.fixture
def world(server: Path) -> Iterator[World]:
    """The cluster, emptied after the test."""
    made = World(server)
    yield made
    made.close()


@pytest.fixture
def mig(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mig:
    """Run a command line on the test's cluster."""
    monkeypatch.setenv("KUBECONFIG", str(world.kubeconfig))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> Ran:
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
