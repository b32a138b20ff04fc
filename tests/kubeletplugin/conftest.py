"""Simulated machines, and an embedded API server for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import asdict

import sim.nvml
from api.crds import mignode_definition
from dra.common.resources import CUSTOM_RESOURCE_DEFINITIONS
from dra.gpu.inventory import AllocatorKind
from dra.kube.client import KubeApi
from kubeletplugin import times
from kubeletplugin.claims import janitor, node, prepare
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import OTHERS, Variants
from tests.helpers.folders import can_make_nodes, short_folder
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.publishedslices import published
from tests.kubeletplugin.helpers.rig import A100, Rig
from tests.sim.apiserver.running import running_server


@contextmanager
def api_server(folder: Path, *flags: str) -> Iterator[Path]:
    """An embedded API server with our CRD; its kubeconfig."""
    with running_server(folder, *flags) as server:
        api = KubeApi.connect(str(server.kubeconfig), user_agent="tests/1")
        api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
        api.close()
        yield server.kubeconfig


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    """No test leaves the simulated library in its process."""
    yield
    sim.nvml.uninstall()


@pytest.fixture(autouse=True)
def unnamed_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remedies name no node, whichever an earlier test of this process has named."""
    monkeypatch.setattr("kubeletplugin.nvml.errors._node", "<node>")


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """That of the API server of most tests."""
    with api_server(tmp_path_factory.mktemp("api")) as path:
        yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets in it."""
    with short_folder() as path:
        yield path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that is marked so runs on machines that play each variant beside what is usual.

    Three machines share them, so that no test takes ten; in a soak each has its own.
    """
    if metafunc.definition.get_closest_marker("every_variant"):
        with short_folder() as folder:
            able = can_make_nodes(folder)
        names = [n for n in OTHERS if able or OTHERS[n].host_nodes == "made"]
        shared = grouped(names, 3)
        machines = [together(*(OTHERS[n] for n in group)) for group in shared]
        metafunc.parametrize("variants", machines, ids=[*map("+".join, shared)])


def grouped(names: list[str], count: int) -> list[list[str]]:
    """Groups of variants, each of which shares a machine; in a soak each variant has its own."""
    return (
        [[n] for n in names]
        if os.environ.get("MIG_SOAK")
        else [names[i::count] for i in range(count)]
    )


def together(*variants: Variants) -> Variants:
    """One driver with all that is unusual in any of them."""
    usual = asdict(Variants())
    unusual = [(k, v) for each in variants for k, v in asdict(each).items() if v != usual[k]]
    return Variants(**dict(unusual))


@pytest.fixture
def variants() -> Variants:
    """In which way the driver of a test's machines behaves."""
    return Variants()


@pytest.fixture
def make_rig(
    folder: Path, kubeconfig: Path, variants: Variants, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Rig]]:
    """Builds a node with the given GPUs; the plugin is not started."""
    made: list[Rig] = []
    # For so long a plugin that is to stop may wait for an event.
    monkeypatch.setattr(times, "XID_WAIT_SECONDS", 0.05)

    def make(*gpus: GpuSpec) -> Rig:
        place = folder / str(len(made))
        specs = list(gpus or (GpuSpec(A100), GpuSpec(A100)))
        machine = Machine.create(place / "hw", specs, variants=variants)
        made.append(Rig(machine, place, kubeconfig))
        made[-1].create_node()
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A node with two A100, its plugin started."""
    rig = make_rig()
    rig.start()
    return rig


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what a call waits for seconds, it waits for tenths."""
    monkeypatch.setattr(prepare, "PREPARE_SECONDS", 0.5)
    monkeypatch.setattr(node, "UNPREPARE_SECONDS", 0.5)
    monkeypatch.setattr(janitor, "ROUND_SECONDS", 0.1)


@pytest.fixture
def frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin looks at the hardware every half second."""
    monkeypatch.setattr(times, "POLL_SECONDS", 0.5)


@pytest.fixture
def regained_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML is opened anew at every look at the hardware while a GPU is lost."""
    monkeypatch.setattr(times, "REGAIN_FIRST_SECONDS", 0.0)


@pytest.fixture
def scheduled(make_rig: Callable[..., Rig]) -> Rig:
    """A node with two A100 that kube-scheduler allocates."""
    rig = make_rig()
    rig.allocator = AllocatorKind.SCHEDULER
    rig.start()
    wait_for("slices", lambda: published(rig))
    return rig
