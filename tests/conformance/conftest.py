"""The option, the node and the driver; a table of results and latencies at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import controlplane
from hack.cluster.api import Api
from hack.cluster.binaries import CONTROL_PLANE, NODE, find_binaries
from hack.cluster.chart import REPOSITORY
from hack.cluster.containerd import IMAGE
from hack.cluster.controlplane import ControlPlane
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process, wait_for
from tests.conformance.description import Description, read
from tests.conformance.site import NAMESPACE, Site, filled, search_path, shell_of

NODE_NAME = "conformance"
_DRIVER = pytest.StashKey[Description | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance of a DRA driver")
    group.addoption("--driver", type=Path, help="YAML file that tells of the driver")
    group.addoption("--image", default="busybox", help="with KUBECONFIG: image with a shell")
    group.addoption(
        "--shell",
        default="",
        help="with KUBECONFIG: runs commands on the node, such as 'docker exec kind-worker sh -c'; "
        "what needs them is skipped unless given",
    )
    group.addoption("--node", default="", help="with KUBECONFIG: the node; its first unless given")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--driver")
    try:
        config.stash[_DRIVER] = path and read(path)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    site = getattr(item, "funcargs", {}).get("site")
    if site is not None and report.when == "call":
        times = ", ".join(f"{what} {spent:.1f}" for what, spent in site.times.items())
        item.user_properties.append(("seconds", times))  # for JUnit, which takes the last report's
        report.user_properties.append(("seconds", times))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Scenario, result, latencies."""
    rows = [
        (each.nodeid.partition("::test_")[2], kind, dict(each.user_properties).get("seconds", ""))
        for kind in ("passed", "failed", "skipped", "error")
        for each in terminalreporter.stats.get(kind, [])
        if each.when == "call" or kind in {"skipped", "error"}
    ]
    for name, kind, times in rows:
        terminalreporter.write_line(f"{kind:8}{name:90}{times}")


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> Description:
    found = request.config.stash[_DRIVER]
    if found is None:
        pytest.skip("no --driver FILE.yaml; tests/conformance/drivers has some")
    return found


@pytest.fixture(scope="session")
def running(driver: Description, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The driver on a node of the cluster of KUBECONFIG, else of one that is started."""
    with contextlib.ExitStack() as stack:
        if os.environ.get("KUBECONFIG"):
            site = stack.enter_context(_given(driver, request.config))
        else:
            home = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            site = stack.enter_context(_started(driver, home))
        yield site


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """Nothing is left on the node after a scenario, and its devices are published before.

    A kubelet that was restarted has removed its node's ResourceSlices.
    """
    running.times = {}
    if running.driver.publishes:
        running.wait("ResourceSlices", running.slices, timeout=100)
    yield running
    running.clear()


@contextlib.contextmanager
def _given(driver: Description, config: pytest.Config) -> Iterator[Site]:
    """A cluster in which the driver is installed.

    `kubectl proxy` has the credentials, of whatever kind.
    """
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on PATH, by which KUBECONFIG is used")
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            found = re.search(r"127\.0\.0\.1:\d+", proxy.stdout.readline())
            assert found, "kubectl proxy does not start"
            api = Api(f"http://{found[0]}", "", certificate=Path(os.devnull))
            del api.headers["Authorization"]
            node = config.getoption("--node") or api.list("Node")[0]["metadata"]["name"]
            placeholders = {"node": node, "kubelet": "/var/lib/kubelet", "cdi": "/var/run/cdi"}
            placeholders["python"] = "python3"
            given = config.getoption("--shell") if driver.can_be_asked_anywhere() else ""
            shell = shell_of(placeholders, os.environ, shell=given) if given else None
            site = Site(api, driver, node, config.getoption("--image"), shell)
            _make_namespace(api)
            yield site
            api.delete("Namespace", NAMESPACE)
        finally:
            proxy.terminate()


@contextlib.contextmanager
def _started(driver: Description, home: Path) -> Iterator[Site]:
    binaries = find_binaries(os.environ, home=Path.home())
    path = search_path(binaries.directory)
    if reason := binaries.missing((*CONTROL_PLANE, *NODE)) or driver.missing(path):
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("a kubelet needs root")
    if not driver.plugin:
        pytest.skip("the driver's file names no plugin to start, and KUBECONFIG is not set")
    folders = {each: home / each for each in ("cp", "n", "shown", "d", "logs")}
    for folder in folders.values():
        folder.mkdir()
    users = (controlplane.node_user(NODE_NAME),)
    with (
        ControlPlane(binaries, folders["cp"], users=users) as plane,
        KubeletNode(
            binaries, plane, name=NODE_NAME, root=folders["n"], shown=folders["shown"]
        ) as kubelet,
        contextlib.ExitStack() as stack,
    ):
        placeholders = {
            "kubeconfig": str(plane.kubeconfig(controlplane.ADMIN)),
            "node": NODE_NAME,
            "kubelet": str(kubelet.kubelet_root),
            "cdi": str(kubelet.cdi_root),
            "home": str(folders["d"]),
            "python": sys.executable,
        }
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
        kubelet.process.argv.append("--v=3")  # it logs registrations
        kubelet.configure(syncFrequency="1m")  # its default, by which it repeats a failed Prepare

        def process(name: str, command: str) -> Process:
            argv = ["sh", "-c", f"exec {filled(command, placeholders)}"]
            made = Process(name, argv, logs=folders["logs"], environment=environment)
            stack.callback(made.stop)
            return made

        shell = shell_of(placeholders, environment)
        site = Site(plane.api, driver, NODE_NAME, IMAGE, shell, kubelet)
        _make_namespace(plane.api)
        for each in driver.objects_and_files(REPOSITORY):
            plane.api.create(each)
        shell(driver.before)
        site.programs = [
            process(f"program-{n}", command) for n, command in enumerate(driver.programs)
        ]
        plugin = site.plugin = process("plugin", driver.plugin)
        if driver.second:
            site.spare = process("plugin-2", f"{driver.plugin} {driver.second}")
        with site.registering():
            for program in (*site.programs, plugin):
                program.start()
        site.wait("class", lambda: plane.api.find("DeviceClass", driver.device_class))
        yield site


def _make_namespace(api: Api) -> None:
    """Whose pods may ask for adminAccess."""
    label = {"resource.kubernetes.io/admin-access": "true"}
    meta = {"name": NAMESPACE, "labels": label}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    wait_for(
        "default service account",
        lambda: api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"],
    )
