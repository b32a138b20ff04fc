"""A cluster that stays up: usable with its kubeconfig, and watched over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra.kube.resources import PODS
from dra.kube.transport import KubeApi
from tests.sim import standins
from tests.sim.cluster.conftest import processes_in
from tests.sim.standins import gone, phase
from tests.waiting import PATIENCE, wait_for


@dataclass
class Up:
    process: subprocess.Popen[str]
    home: Path
    log: Path

    @property
    def api(self) -> KubeApi:
        return KubeApi.connect(str(self.home / "kubeconfig"), user_agent="test")

    def says(self, text: str) -> None:
        def said() -> bool:
            output = self.log.read_text()
            assert text in output or self.process.poll() is None, output
            return text in output

        wait_for(f"{text!r} in the output", said)

    def kill(self, command: str) -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"-m sim {command}" in line and str(self.home) in line:
                os.kill(int(path.parent.name), signal.SIGKILL)


@pytest.fixture
def up(short_temporary: Path) -> Iterator[Up]:
    home, log = short_temporary / "c", short_temporary / "log"
    options = ["--nodes", "1", "--gpus", "1", "--dir", str(home)]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sim", "up", *options], stdout=output, text=True
        )
    running = Up(process, home, log)
    try:
        running.says("Ctrl-C ends it")
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    wait_for("end of all processes", lambda: not processes_in(home))


def _run_pod(api: KubeApi, name: str) -> None:
    api.create(PODS, standins.pod(name, claim={"resourceClaimTemplateName": "one"}))
    wait_for(f"{name} running", lambda: phase(api, name) == "Running")


def test_a_plugin_that_dies_is_started_again_and_serves_its_node(up: Up) -> None:
    standins.create_template(up.api)
    _run_pod(up.api, "first")
    up.kill("plugin")
    up.says("plugin-node-1 was killed by signal 9")
    up.says("plugin-node-1 is started again")
    log = up.home / "logs" / "plugin-node-1.log"
    wait_for("registration", lambda: log.read_text().count("registered with kubelet") == 2)
    _run_pod(up.api, "second")
    up.api.delete(PODS, "first", namespace="default")
    wait_for("first gone", lambda: gone(lambda: standins.get_pod(up.api, "first")))


def test_a_stand_in_that_dies_ends_the_cluster_with_the_end_of_its_log(up: Up) -> None:
    log = up.home / "logs" / "kubelet-node-1.log"
    wait_for("registration", lambda: "registered DRA driver" in log.read_text())
    up.kill("kubelet")
    assert up.process.wait(PATIENCE) == 1
    up.says("kubelet-node-1 was killed by signal 9. The end of its log:")
    assert "registered DRA driver" in up.log.read_text()


def test_a_second_cluster_beside_it_does_not_disturb_it(up: Up, short_temporary: Path) -> None:
    other = short_temporary / "o"
    command = [
        sys.executable,
        "-m",
        "sim",
        "up",
        "--nodes",
        "1",
        "--gpus",
        "1",
        "--dir",
        str(other),
    ]
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for("second kubeconfig", (other / "kubeconfig").exists)
    finally:
        second.terminate()
        second.wait(PATIENCE)
    assert up.process.poll() is None
    standins.create_template(up.api)
    _run_pod(up.api, "first")
