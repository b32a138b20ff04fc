"""A node comes over from a device plugin under running pods, and goes back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN
from sim.nvml.faults import Fault
from sim.processes import Process, wait_for
from tests.cluster.harness.daemons import daemon, start_registered
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING

NODE, GPU, PROFILE = "taken", "A100-SXM4-40GB", "1g.5gb"
LABEL = "nvidia.com/gpu.deploy.device-plugin"
RESOURCE = f"nvidia.com/mig-{PROFILE}"
WHERE: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": NODE}}
TRAINS = ["train-0", "train-1", "train-2"]
SOON = 150.0
"""An instance is looked at for half a minute; a killed program has to register again."""


class Operator:
    """Keeps the device plugin on the node as the node's label says, as a DaemonSet would."""

    def __init__(self, site: NodeSite, logs: Path) -> None:
        self._site, self._logs = site, logs
        self._plugin: Process | None = None

    def follow(self) -> None:
        """Start or end it."""
        wanted = self._site.api.get("Node", NODE)["metadata"]["labels"].get(LABEL) == "true"
        if wanted and self._plugin is None:
            module = "tests.cluster.harness.deviceplugin"
            arguments = (module, str(self._site.kubelet.kubelet_root), RESOURCE)
            self._plugin = daemon("deviceplugin", *arguments, *uuids(self._site), logs=self._logs)
            self._plugin.start()
        elif not wanted:
            self.end()

    def end(self) -> None:
        """End it."""
        if self._plugin is not None:
            self._plugin.stop()
        self._plugin = None


@pytest.fixture
def site(binaries: Binaries, root: Path) -> Iterator[NodeSite]:
    with running_node(binaries, root / "takeover", name=NODE, gpus=(GPU,)) as site:
        yield site


@pytest.fixture
def operator(site: NodeSite, tmp_path: Path) -> Iterator[Operator]:
    running = Operator(site, tmp_path)
    yield running
    running.end()


def uuids(site: NodeSite) -> list[str]:
    found = site.machine.gpu(0).gpu_instances
    return [ci.uuid for gi in found for ci in gi.compute_instances]


def show_host(site: NodeSite) -> None:
    """What the plugin sees of the host, where it runs in the pid namespace of the node."""
    host = site.driver.hardware[NODE].host_root
    links = {
        "sys/fs/cgroup": "/sys/fs/cgroup",
        "var/log/pods": str(site.kubelet.pod_logs),
        str(site.kubelet.kubelet_root).lstrip("/"): str(site.kubelet.kubelet_root),
    }
    for link, target in links.items():
        (host / link).parent.mkdir(parents=True, exist_ok=True)
        (host / link).symlink_to(target)


def mig(site: NodeSite, *arguments: str) -> tuple[int, str]:
    """Exit code and text of a command, which is shown."""
    plane = site.driver.control_plane
    ended = subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig(ADMIN))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    text = f"$ kubectl mig {' '.join(arguments)}\n{ended.stdout}{ended.stderr}({ended.returncode})"
    print(text)  # noqa: T201 - what each command printed
    return ended.returncode, ended.stdout + ended.stderr


def limited(name: str) -> Obj:
    """A pod that asks by the device plugin's resource."""
    body = pod(name, SLEEPING, **WHERE)
    body["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: "1"}
    return body


def status(site: NodeSite) -> tuple[str, str]:
    """State and message of the progress, if it is about the present wish."""
    found = site.api.get("MigNode", NODE)
    progress = found.get("status", {}).get("takeover", {})
    wish = found["spec"].get("takeover", {})
    is_current = progress.get("since") == wish.get("since")
    return (progress["state"], progress.get("message", "")) if is_current else ("", "")


def wait_status(site: NodeSite, state: str, text: str) -> None:
    wait_for(
        f"{state}: {text}",
        lambda: (found := status(site))[0] == state and text in found[1],
        timeout=SOON,
        context=lambda: f"{status(site)}\n{site.workload.describe()}",
    )


def killed(site: NodeSite, function: str, action: str = "crash-after") -> None:
    """Until a call of NVML has ended the plugin; it is started again."""
    plugin = site.driver.plugins[NODE]
    site.machine.inject(Fault(function=function, action=action, times=1))  # type: ignore[arg-type]
    wait_for(
        f"kill by {function}", lambda: not plugin.running, timeout=SOON, context=site.driver.tails
    )
    site.machine.clear_faults()
    start_registered(plugin)


def restart_leader(site: NodeSite) -> None:
    site.driver.controller.kill()
    site.driver.controller.start()


def holder(site: NodeSite, name: str) -> str:
    """UUID of the instance that a pod has, as the MigNode tells."""
    found = site.api.get("MigNode", NODE)["status"]["gpus"][0].get("instances", [])
    return next((i["uuid"] for i in found if f"default/{name} (" in i.get("message", "")), "")


def begin(site: NodeSite, operator: Operator) -> None:
    """Five instances of others, three with pods, and a pod without."""
    plugin = site.driver.plugins[NODE]
    plugin.kill()
    show_host(site)
    for start in range(5):
        site.machine.create_slice(0, PROFILE, start=start)
    start_registered(plugin)
    site.api.patch("Node", NODE, {"metadata": {"labels": {LABEL: "true"}}})
    operator.follow()
    site.workload.create(pod("beside", SLEEPING, **WHERE))
    for name in TRAINS:
        site.workload.create(limited(name))
        site.workload.wait_for_phase(name, "Running")
    wait_for(
        "the pods in the MigNode",
        lambda: all(holder(site, name) for name in TRAINS),
        timeout=30,
        context=site.workload.describe,
    )


def take(site: NodeSite, operator: Operator) -> None:
    """The commands, and what becomes of the instances that no pod has."""
    held = [holder(site, name) for name in TRAINS]
    free = [
        (gi.id, ci.uuid)
        for gi in site.machine.gpu(0).gpu_instances
        for ci in gi.compute_instances
        if ci.uuid not in held
    ]
    site.machine.start_process(0, 4711, gpu_instance=free[0][0], compute_instance=0)
    assert mig(site, "takeover", NODE)[0] == 0
    assert mig(site, "takeover", NODE, "--execute")[0] == 0
    wait_status(site, "pending", "nothing is taken yet: a device plugin gives out")
    site.driver.plugins[NODE].kill()
    start_registered(site.driver.plugins[NODE])
    operator.follow()
    killed(site, "nvmlComputeInstanceDestroy", "crash-before")
    assert len(uuids(site)) == 5
    killed(site, "nvmlComputeInstanceDestroy", "crash-after")
    wait_status(site, "pending", "4 left")
    assert sorted(uuids(site)) == sorted([*held, free[0][1]])
    assert "process 4711 is in it" in mig(site, "takeover", NODE, "--status")[1]
    mig(site, "map", NODE)
    restart_leader(site)
    claims = {"gpu": site.workload.template("own", device_class=f"mig-{PROFILE}")}
    site.workload.run("own", claims=claims, **WHERE)
    site.machine.end_process(4711)
    wait_status(site, "pending", "3 left")


def hand_back(site: NodeSite, operator: Operator) -> None:
    """The commands, with a pod that has a slice, and the plugin killed while it makes others."""
    own = site.workload.container("own")
    assert mig(site, "handback", NODE, "--execute", "--restore")[0] == 0
    wait_status(site, "pending", "1 left")
    assert mig(site, "handback", NODE, "--status")[0] == 1
    restart_leader(site)
    assert site.workload.container("own") == own
    site.api.delete("Pod", "own", grace=0)
    killed(site, "nvmlGpuInstanceCreateComputeInstance", "crash-after")
    wait_status(site, "success", "")
    assert mig(site, "handback", NODE, "--execute")[0] == 0
    operator.follow()


@pytest.mark.timeout(900)
def test_a_node_comes_over_under_running_pods_and_goes_back(
    site: NodeSite, operator: Operator
) -> None:
    begin(site, operator)
    containers = [site.workload.container(name) for name in TRAINS]
    held = [holder(site, name) for name in TRAINS]
    take(site, operator)
    for number, name in enumerate(TRAINS):
        assert held[number] in uuids(site)
        assert site.workload.container(name) == containers[number]
        site.api.delete("Pod", name, grace=0)
        left = len(TRAINS) - number - 1
        wait_status(site, "pending", f"{left} left") if left else wait_status(site, "success", "")
        assert held[number] not in uuids(site)
    assert mig(site, "takeover", NODE, "--status")[0] == 0
    assert len(uuids(site)) == 1
    hand_back(site, operator)
    assert [gi.start for gi in site.machine.gpu(0).gpu_instances] == [0, 1, 2, 3, 4]
    assert len(uuids(site)) == 5
    assert "mig.taken" not in (site.driver.state(NODE) / "journal.json").read_text()
    site.workload.create(limited("again"))
    site.workload.wait_for_phase("again", "Running")
    mig(site, "map", NODE)
    site.workload.clear()
