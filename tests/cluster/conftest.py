"""Fixtures of the cluster tests: they skip, saying what is missing, without the binaries."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.api import Api
from hack.cluster.binaries import CONTROL_PLANE, NODE, Binaries, find_binaries
from hack.cluster.controlplane import ControlPlane
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import Driver, registrations
from tests.cluster.harness.ground import (
    FAKE,
    FAKE_NODES,
    REAL_NODE,
    USERS,
    make_namespace,
    serve_mignodes,
)
from tests.cluster.harness.pods import add_fake_node
from tests.cluster.harness.stage import Stage
from tests.cluster.harness.workload import Workload


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Adds the ends of the logs of everything that a failed test used."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if hasattr(value, "tails"):
                report.sections.append((f"logs of {name}", value.tails()))
    return report


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    found = find_binaries(os.environ, home=Path.home())
    if reason := found.missing(CONTROL_PLANE):
        pytest.skip(reason)
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, which makes the service-account key")
    return found


@pytest.fixture(scope="session")
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory with a short path, since sockets live below it; kept when a test failed.

    What plugins mount in it, nodes see, as on hosts whose / is a shared mount.
    """
    directory = Path(tempfile.mkdtemp(prefix="mig", dir="/tmp"))
    mounts = os.geteuid() == 0
    if mounts:
        subprocess.run(["mount", "--bind", directory, directory], check=True)
        subprocess.run(["mount", "--make-shared", directory], check=True)
    yield directory
    if mounts:
        subprocess.run(["umount", "--lazy", "--recursive", directory], check=True)
    if not request.session.testsfailed:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def control_plane(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    home = root / "cp"
    home.mkdir()
    with ControlPlane(binaries, home, users=USERS) as running:
        yield running


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Api:
    return control_plane.api


@pytest.fixture(scope="session")
def kubelet(binaries: Binaries, control_plane: ControlPlane, root: Path) -> Iterator[KubeletNode]:
    """The only node that runs pods."""
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    home, shown = root / "n", root / "node"
    home.mkdir()
    shown.mkdir()
    with KubeletNode(binaries, control_plane, name=REAL_NODE, root=home, shown=shown) as node:
        yield node
    assert node.leftovers() == []


@pytest.fixture(scope="session")
def crds(api: Api) -> None:
    """Our resources, served."""
    serve_mignodes(api)


@pytest.fixture(scope="session")
def driver(
    control_plane: ControlPlane, crds: None, kubelet: KubeletNode, root: Path
) -> Iterator[Driver]:
    """The driver on the real node and on two nodes without kubelet, ready for claims."""
    api = control_plane.api
    make_namespace(api)
    home = root / "d"
    home.mkdir()
    driver = Driver(control_plane, home)
    driver.add_node(
        kubelet.name,
        gpus=("A100-SXM4-40GB",),
        kubelet_root=kubelet.kubelet_root,
        cdi_root=kubelet.cdi_root,
    )
    for name in FAKE_NODES:
        add_fake_node(api, name, cpu="2", labels=FAKE)
        kubelet_root, cdi_root = home / f"{name}-k", home / f"{name}-cdi"
        driver.add_node(
            name, gpus=("A100-SXM4-40GB",), kubelet_root=kubelet_root, cdi_root=cdi_root
        )
    with driver:
        wait_for(
            "devices of every node and their classes",
            lambda: (
                len(api.list("MigNode")) == 1 + len(FAKE_NODES)
                and registrations(driver.plugins[kubelet.name]) > 0
                and api.find("DeviceClass", "mig-1g.5gb") is not None
            ),
            context=driver.tails,
        )
        yield driver


@pytest.fixture
def where(kubelet: KubeletNode) -> dict[str, Any]:
    """The part of a pod's spec that puts it on the node that runs pods."""
    return {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}


@pytest.fixture
def agreement(api: Api, driver: Driver, kubelet: KubeletNode) -> Iterator[Agreement]:
    """The real node, with a slice that is not ours; nothing else is left on it after the test.

    Name it before `workload`, whose objects have to be gone by then.
    """
    node = Agreement(api, driver, node=kubelet.name, cdi_root=kubelet.cdi_root)
    node.settle(context=driver.tails)
    with node.foreign_slice("1g.5gb", start=6):
        yield node
        assert node.settle(context=driver.tails) == {}


@pytest.fixture
def workload(driver: Driver, kubelet: KubeletNode, api: Api) -> Iterator[Workload]:
    """Creates objects that are deleted after the test, and waits until no claim is left."""
    tracked = Workload(api, tails=lambda: f"{driver.tails()}\n{kubelet.tails()}")
    yield tracked
    tracked.clear()


@pytest.fixture
def stage(
    *,
    agreement: Agreement,
    api: Api,
    driver: Driver,
    kubelet: KubeletNode,
    workload: Workload,
    where: dict[str, Any],
) -> Stage:
    """All of it; the agreement ends last."""
    return Stage(agreement, api, driver, kubelet, workload, where)
