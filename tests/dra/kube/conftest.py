from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import PODS
from dra.kube.client import KubeApi
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.connect.certificates import Certificates, make_certificates
from tests.dra.kube.events.recorders import Make
from tests.dra.kube.mirror.mirrors import Seen, Start
from tests.dra.kube.stub import Stub
from tests.helpers.waiting import PATIENCE


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_stub(certificates: Certificates) -> Iterator[Stub]:
    server = Stub(context=certificates.server_context())
    yield server
    server.close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


Connect = Callable[[float], KubeApi]


@pytest.fixture
def connect(stub: Stub, tmp_path: Path) -> Iterator[Connect]:
    """Makes clients whose calls have a budget of so many seconds."""
    made: list[KubeApi] = []

    def client(seconds: float) -> KubeApi:
        config = stub.kubeconfig(tmp_path / "kubeconfig")
        made.append(KubeApi.connect(config, user_agent="tests/1", timeout_seconds=seconds))
        return made[-1]

    yield client
    for api in made:
        api.close()


@pytest.fixture
def api(connect: Connect) -> KubeApi:
    return connect(PATIENCE)


@pytest.fixture
def hasty(connect: Connect) -> KubeApi:
    """A client whose calls cost at most a second, for servers that do not answer."""
    return connect(1.0)


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


@pytest.fixture
def make(api: KubeApi, clock: FakeClock) -> Iterator[Make]:
    made: list[EventRecorder] = []

    def create(**options: Any) -> EventRecorder:
        defaults: dict[str, Any] = {"component": "mig.dra.dev/controller", "clock": clock}
        made.append(EventRecorder(api, **defaults | options))
        return made[-1]

    yield create
    for recorder in made:
        recorder.close(0)
