"""Each image starts every program that the chart runs in it, with no package but its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.common.resources import CUSTOM_RESOURCE_DEFINITIONS, NODES, Obj
from dra.kube.client import KubeApi
from hack.cluster.chart import REPOSITORY, pod_spec, render
from sim.nvml.machine import GpuSpec, Machine
from tests.deploy.chart.test_programs import arguments
from tests.deploy.images.imagefiles import Image, build, stages
from tests.helpers.folders import short_folder
from tests.helpers.scrape import get, logged_port
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.apiserver.running import running_server

NODE = "node-a"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Image]:
    """The image of a stage, built once."""
    built: dict[str, Image] = {}

    def image(stage: str) -> Image:
        if stage not in built:
            built[stage] = build(stage, tmp_path_factory.mktemp(stage))
        return built[stage]

    return image


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    with running_server(tmp_path) as server:
        with closing(KubeApi.connect(str(server.kubeconfig), user_agent="tests/1")) as api:
            definition = (REPOSITORY / "api/crds/mignodes.yaml").read_text()
            api.create(CUSTOM_RESOURCE_DEFINITIONS, yaml.safe_load(definition))
            api.create(NODES, {"metadata": {"name": NODE}})
        yield server.kubeconfig


def rewritten(container: Obj, changes: dict[str, str]) -> list[str]:
    """The container's whole command after `python`, with other values for some of its flags."""
    command = [*container["command"][1:3], *arguments(container)]
    replaced = set()
    for place, each in enumerate(command):
        flag = each.partition("=")[0]
        if flag in changes:
            command[place] = f"{flag}={changes[flag]}"
            replaced.add(flag)
    assert replaced == changes.keys()
    return command


@contextmanager
def started(image: Image, command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [image.python, *command],
            cwd=image.folder,
            env={"PATH": "/usr/bin:/bin"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                code = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert code == 0, log.read_text()


def answers(process: subprocess.Popen[bytes], log: Path, path: str) -> bool:
    """Whether a probe is answered with success; ends with the log if the program has ended."""
    assert process.poll() is None, log.read_text()
    port = logged_port([log])
    return bool(port) and get(port, path)[0] == 200


def test_the_controllers_image_runs_the_controller(
    images: Callable[[str], Image], kubeconfig: Path, tmp_path: Path
) -> None:
    (container,) = pod_spec(render(), "controller")["containers"]
    command = rewritten(container, {"--metrics-address": "127.0.0.1:0"})
    log = tmp_path / "log"
    with started(images("controller"), [*command, f"--kubeconfig={kubeconfig}"], log) as process:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            wait_for(probe, partial(answers, process, log, path))


_SELECTOR = """
from dra.cel.questions import Job
from dra.sandbox.process import Sandbox
device = {"driver": "a", "attributes": {"a": {"x": "1"}}, "capacity": {"a": {}}}
selectors = ('device.attributes["a"].x.matches("^[0-9]$")', 'size(device.?b.orValue("a")) == 1')
answer = Sandbox().answer(Job(selectors, (device, {**device, "attributes": {"a": {"x": "y"}}})))
print([each.devices for each in answer.selected], answer.error)
"""


def test_the_controllers_image_evaluates_selectors(images: Callable[[str], Image]) -> None:
    """The first of them loads the evaluator, in a process of its own."""
    image = images("controller")
    command = [str(image.python), "-c", _SELECTOR]
    done = subprocess.run(command, cwd=image.folder, capture_output=True, text=True, check=False)
    assert done.stdout == "[(0,)] \n", done.stderr


def plugin_command(objects: list[Obj], folder: Path, host: Path) -> tuple[list[str], Obj]:
    (container,) = pod_spec(objects, "kubelet-plugin")["containers"]
    changes = {
        "--node-name": NODE,
        "--kubelet-root": str(folder / "k"),
        "--cdi-root": str(folder / "cdi"),
        "--host-root": str(host),
        "--metrics-address": "127.0.0.1:0",
    }
    return rewritten(container, changes), container


def test_the_kubelet_plugins_image_runs_the_plugin(
    images: Callable[[str], Image], kubeconfig: Path
) -> None:
    """Without a GPU it stays up and says so; that it is alive is all that a probe can ask."""
    with short_folder() as folder:
        command, container = plugin_command(render(), folder, folder / "host")
        log = folder / "log"
        path: Any = container["livenessProbe"]["httpGet"]["path"]
        given = [*command, f"--kubeconfig={kubeconfig}"]
        with started(images("kubelet-plugin"), given, log) as process:
            wait_for("the probe", lambda: answers(process, log, path))


def test_the_simulators_image_runs_the_plugin_until_it_is_ready(
    images: Callable[[str], Image], kubeconfig: Path
) -> None:
    with short_folder() as folder:
        machine = Machine.create(folder / "hw", [GpuSpec("A30")])
        objects = render({"simulated": {"enabled": True, "gpus": ["A30"]}})
        command, container = plugin_command(objects, folder, machine.host_root)
        place = next(i for i, each in enumerate(command) if each.startswith("--hardware="))
        command[place] = f"--hardware={folder / 'hw'}"
        log = folder / "log"
        path: Any = container["readinessProbe"]["httpGet"]["path"]
        given = [*command, f"--kubeconfig={kubeconfig}"]
        with started(images("simulator"), given, log) as process:
            (folder / "k").mkdir(exist_ok=True)
            wait_for("readiness", lambda: answers(process, log, path))


def test_every_image_is_started_here() -> None:
    programs = {name for name, given in stages().items() if "ENTRYPOINT" in given}
    assert programs == {"controller", "kubelet-plugin", "simulator"}
