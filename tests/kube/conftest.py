from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.kube.transport import KubeApi
from tests.kube.stub import Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


@pytest.fixture
def api(stub: Stub, tmp_path: Path) -> Iterator[KubeApi]:
    client = KubeApi.connect(
        stub.kubeconfig(tmp_path / "kubeconfig"), user_agent="tests/1", timeout_seconds=1.0
    )
    yield client
    client.close()
