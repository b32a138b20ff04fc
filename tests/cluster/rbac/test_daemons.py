"""Both daemons with the chart's service accounts and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hack.cluster import credentials
from hack.cluster.api import Obj
from hack.cluster.chart import NAMESPACE, REPOSITORY
from hack.cluster.controlplane import ControlPlane
from hack.cluster.installation import (
    CONTROLLER,
    PLUGIN,
    Installation,
)
from hack.cluster.nodes import pod
from hack.cluster.processes import Process
from hack.cluster.waiting import wait_for
from tests.cluster.harness.daemons import Hardware
from tests.cluster.harness.workload import Workload


def test_a_pod_gets_its_slice_with_the_charts_service_accounts_only(
    installation: Installation, plane: ControlPlane, root: Path
) -> None:
    """The daemons have the tokens that their pods would have; only the kubelet is a stand-in."""
    home = root / "w"
    home.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    hardware = Hardware(home / "hw", gpus=("A100-SXM4-40GB",))
    roots = ["--kubelet-root", str(home / "k"), "--cdi-root", str(home / "cdi")]
    (home / "k").mkdir()

    def process(name: str, kubeconfig: Path, *arguments: str) -> Process:
        argv = [sys.executable, "-m", *arguments, "--kubeconfig", str(kubeconfig)]
        return Process(name, argv, logs=home, environment=environment)

    def kubeconfig(account: str, pod: Obj) -> Path:
        file = home / f"{account}.kubeconfig"
        token = installation.token(account, pod)
        credentials.write_kubeconfig(
            file, server=plane.server, certificate=plane.certificate, token=token
        )
        return file

    plugin_pod = installation.pod_on("node-a", "kubelet-plugin")
    controller_pod = wait_for("controller pod", lambda: installation.pods("controller"))[0]
    node = ["--node-name", "node-a"]
    host = ["--host-root", str(hardware.host_root), "--driver-root", str(hardware.host_root)]
    processes = [
        process("kubelet", plane.kubeconfig(credentials.ADMIN), "sim", "kubelet", *node, *roots),
        process(
            "controller",
            kubeconfig(CONTROLLER, controller_pod),
            *("controller", "--namespace", NAMESPACE, "--identity", "test"),
        ),
        process(
            "plugin",
            kubeconfig(PLUGIN, plugin_pod),
            *("sim", "plugin", "--hardware", str(hardware.state), "--"),
            *(*node, *roots, *host),
        ),
    ]

    def tails() -> str:
        return "\n".join(each.tail() for each in processes)

    workload = Workload(installation.api, tails=tails)
    mark = plane.audit.mark()
    try:
        for each in processes:
            each.start()
        claims = {"gpu": workload.template("slice", device_class="mig-1g.5gb")}
        workload.create(pod("slice", {"main": ["true"]}, claims=claims))
        workload.wait_for_phase("slice", "Running")
        claim = workload.claim_of("slice")
        assert claim is not None
        name = claim["metadata"]["name"]
        wait_for(
            "status.devices",
            lambda: installation.api.get("ResourceClaim", name)["status"].get("devices"),
            context=tails,
        )
        workload.clear()
        wait_for(
            "a free GPU",
            lambda: (
                not any(
                    gpu.get("instances")
                    for gpu in installation.api.get("MigNode", "node-a")["status"]["gpus"]
                )
            ),
            context=tails,
        )
    finally:
        for each in reversed(processes):
            each.stop()
        installation.api.delete("MigNode", "node-a")

    accounts = f"system:serviceaccount:{NAMESPACE}:"
    writes = [w for w in plane.audit.writes(since=mark) if w.user.startswith(accounts)]
    assert {w.user.removeprefix(accounts) for w in writes} == {PLUGIN, CONTROLLER}
    assert [w for w in writes if w.status in {401, 403, 422}] == []
    for each in processes[1:]:
        assert "orbidden" not in each.log.read_text()
