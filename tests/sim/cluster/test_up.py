"""A cluster that stays up: usable with its kubeconfig, and watched over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dra.common.resources import PODS, Obj, Resource
from dra.kube.client import KubeApi
from sim.workloads.plans import DEPLOYMENTS, JOBS
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim import standins
from tests.sim.cluster.conftest import processes_in
from tests.sim.standins import gone, phase


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
        running_until_told = process.poll() is None
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE)
    assert code == 0 or not running_until_told, "Ctrl-C is how it is to end"
    wait_for("end of all processes", lambda: not processes_in(home))


def _run_pod(api: KubeApi, name: str) -> None:
    api.create(PODS, standins.pod(name, claim={"resourceClaimTemplateName": "one"}))
    wait_for(f"{name} running", lambda: phase(api, name) == "Running")


def test_it_is_used_as_it_says_and_lives_until_a_stand_in_dies(up: Up) -> None:
    """A plugin that dies is started again.

    Neither a second run on its directory nor a cluster beside it disturbs the first.
    """
    standins.create_template(up.api)
    _run_what_it_prints(up)
    done = _try("--dir", str(up.home), "--nodes", "1", "--gpus", "1")
    assert done.returncode == 1
    assert f"a simulated cluster runs in {up.home} already" in done.stdout
    assert "Traceback" not in done.stdout
    _start_and_end_another(up.home.with_name("o"))
    assert up.process.poll() is None
    _run_pod(up.api, "first")
    up.kill("plugin")
    up.says("plugin-node-1 was killed by signal 9")
    up.says("plugin-node-1 is started again")
    log = up.home / "logs" / "plugin-node-1.log"
    wait_for("registration", lambda: log.read_text().count("registered with kubelet") == 2)
    _run_pod(up.api, "second")
    _run_workloads(up.api)
    up.api.delete(PODS, "first", namespace="default")
    wait_for("first gone", lambda: gone(lambda: standins.get_pod(up.api, "first")))
    up.kill("kubelet")
    assert up.process.wait(PATIENCE) == 1
    up.says("kubelet-node-1 was killed by signal 9. The end of its log:")
    assert "registered DRA driver" in up.log.read_text()


def _run_workloads(api: KubeApi) -> None:
    """A Deployment's pod gets a slice, and a Job's ends."""
    pod = standins.pod("a", claim={"resourceClaimTemplateName": "one"})
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod["spec"]}
    chosen = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
    metadata = {"name": "a", "namespace": "default"}
    api.create(DEPLOYMENTS, {"metadata": metadata, "spec": {"replicas": 1, **chosen}})
    container = {"name": "main", "image": "app", "command": ["sleep", "1"]}
    once = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    api.create(JOBS, {"metadata": metadata, "spec": {"template": once}})

    def status(resource: Resource) -> Obj:
        found: Obj = api.get(resource, "a", namespace="default").get("status", {})
        return found

    wait_for("its pod", lambda: status(DEPLOYMENTS).get("readyReplicas") == 1)
    wait_for("the job's end", lambda: status(JOBS).get("completionTime"))
    for resource in (DEPLOYMENTS, JOBS):
        api.delete(resource, "a", namespace="default")


def _start_and_end_another(home: Path) -> None:
    options = ["--nodes", "1", "--gpus", "1", "--dir", str(home)]
    with subprocess.Popen(
        [sys.executable, "-m", "sim", "up", *options], stdout=subprocess.DEVNULL
    ) as second:
        try:
            wait_for("second kubeconfig", (home / "kubeconfig").exists)
        finally:
            second.terminate()


def _run_what_it_prints(up: Up) -> None:
    """Its steps run as printed, also beside another pod."""
    text = up.log.read_text()
    steps = [
        s.partition("#")[0].strip() for s in re.findall(r"^ +(kubectl .*)$", text, re.MULTILINE)
    ]
    *before, delete_one, clear = [s for s in steps if "explain" not in s and " ui" not in s]
    assert len(before) > 3
    environment = os.environ | {
        "KUBECONFIG": str(up.home / "kubeconfig"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    last = re.search(r"describe pod (\S+)", text)
    assert last is not None

    def do(step: str) -> None:
        subprocess.run(step, shell=True, env=environment, check=True, timeout=PATIENCE)

    _run_pod(up.api, "one-more")
    for step in before:
        do(step)
    assert phase(up.api, last[1]) in {"Pending", ""}
    up.api.delete(PODS, "one-more", namespace="default")
    do(delete_one)
    wait_for(f"{last[1]} running", lambda: phase(up.api, last[1]) == "Running")
    do(clear)
    wait_for("last gone", lambda: gone(lambda: standins.get_pod(up.api, last[1])))


def _try(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sim", "up", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
