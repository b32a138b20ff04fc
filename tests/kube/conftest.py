from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.kube.reflector import Change, Reflector
from dra.kube.resources import PODS
from dra.kube.transport import KubeApi
from tests.kube.clocks import FakeClock
from tests.kube.mirrors import Seen, Start
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


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def start(api: KubeApi, clock: FakeClock) -> Iterator[Start]:
    """Starts reflectors whose pauses pass at once, and stops them."""
    started: list[Reflector] = []

    def begin(on_event: Callable[[Change], None] | None = None, **options: Any) -> Reflector:
        reflector = Reflector(api, PODS, on_event=on_event, clock=clock, **options)
        started.append(reflector)
        reflector.start()
        return reflector

    yield begin
    for reflector in started:
        reflector.stop()
