"""A kubelet stand-in in this process, quick to retry, and a plugin for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra.common.resources import PODS, Obj
from dra.kube.client import KubeApi
from sim.kubelet import plugins
from sim.kubelet.kubelet import Kubelet, Settings
from sim.kubelet.pods import Retries
from sim.scheduler import SchedulerWrites
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim import standins
from tests.sim.kubelet.fakeplugin import FakePlugin

NODE = "node-1"
MakePlugin = Callable[..., FakePlugin]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that answers slowly is not asked again: the tests count the calls."""
    monkeypatch.setattr(plugins, "GET_INFO_SECONDS", PATIENCE)
    monkeypatch.setattr(plugins, "NOTIFY_SECONDS", PATIENCE)


@pytest.fixture
def settings(short_path: Path) -> Settings:
    return Settings(
        root=short_path / "kubelet",
        cdi_root=short_path / "cdi",
        retries=Retries(prepare=0.3, quick=0.2),
    )


@pytest.fixture
def kubelet(api: KubeApi, settings: Settings) -> Iterator[Kubelet]:
    kubelet = Kubelet(api, NODE, settings)
    kubelet.start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def make_plugin(settings: Settings) -> Iterator[MakePlugin]:
    made: list[FakePlugin] = []

    def make(**options: object) -> FakePlugin:
        made.append(FakePlugin(settings.root, settings.cdi_root, **options))  # type: ignore[arg-type]
        return made[-1].start()

    yield make
    for plugin in made:
        plugin.stop()


@pytest.fixture
def plugin(kubelet: Kubelet, make_plugin: MakePlugin) -> FakePlugin:
    """A registered plugin."""
    plugin = make_plugin()
    wait_for("registration", lambda: plugin.statuses == [(True, "")])
    return plugin


@pytest.fixture
def claim(api: KubeApi) -> Obj:
    """A claim that is allocated to the node, for nobody yet."""
    standins.create_claim(api, "shared")
    return standins.allocate(api, "shared", NODE)


def bind(api: KubeApi, name: str, claim: Obj, **more: object) -> Obj:
    """A pod that the claim is reserved for and then bound to the node, as a scheduler does it."""
    body = standins.pod(name, claim={"resourceClaimName": claim["metadata"]["name"]})
    body["metadata"] |= more
    return bind_pod(api, body, claim)


def bind_pod(api: KubeApi, body: Obj, claim: Obj) -> Obj:
    """Create the pod, reserve the claim for it, and bind it."""
    pod = api.create(PODS, body)
    SchedulerWrites(api).reserve(pod, claim)
    SchedulerWrites(api).bind(pod, NODE)
    return pod
