"""Pods that share a slice by MPS, on a real kubelet with a stand-in for NVIDIA's program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.common.resources import Obj
from dra.kube.timing import rfc3339
from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE, REPOSITORY
from hack.cluster.containerd import IMAGE
from hack.cluster.kubelet import KubeletNode
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER, Driver
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload

FLAGS = ("--mps-image", IMAGE, "--mps-namespace", NAMESPACE)
SHOW = (
    "env | grep CUDA_MPS; test -p /tmp/nvidia-mps/control && echo control; "
    'grep " /dev/shm tmpfs" /proc/mounts; ls /dev/shm; echo here > /dev/shm/$NAME; echo end; '
    "sleep 1000000"
)


@pytest.fixture
def plugin(driver: Driver, kubelet: KubeletNode) -> Iterator[Process]:
    """A plugin with MPS, in the place of the usual one."""
    with driver.in_place(kubelet.name, *FLAGS) as plugin:
        yield plugin


def example() -> Obj:
    """The claim of the handbook's example, in namespace default."""
    claim: Obj = next(yaml.safe_load_all((REPOSITORY / "docs/examples/mps-slice.yaml").read_text()))
    claim["metadata"]["namespace"] = "default"
    return claim


def output(kubelet: KubeletNode, running: Obj, container: str = "main") -> list[str] | None:
    """Lines that SHOW printed, once all of them are there."""
    lines = kubelet.log(running, container).splitlines()
    return lines if lines and lines[-1] == "end" else None


def daemons(api: Api) -> list[Obj]:
    selector = "app.kubernetes.io/component=mps-daemon"
    return api.list("Pod", namespace=NAMESPACE, labelSelector=selector)


def answer(host: Path, pipe: Path, command: str) -> str:
    """The answer of a daemon, as NVIDIA's program on the node prints it."""
    done = subprocess.run(
        [host / "usr/bin/nvidia-cuda-mps-control"],
        input=f"{command}\n",
        env={"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


@pytest.mark.timeout(300)
def test_two_pods_are_clients_of_one_daemon_which_goes_before_their_slice(
    *,
    agreement: Agreement,
    api: Api,
    driver: Driver,
    kubelet: KubeletNode,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    made = workload.create(example())
    claims = {"slice": {"resourceClaimName": made["metadata"]["name"]}}
    shown: dict[str, list[str]] = {}
    for name in ("one", "other"):
        body = pod(name, {"main": ["sh", "-c", f"NAME={name}; {SHOW}"]}, claims=claims, **where)
        workload.create(body)
        running = workload.wait_for_phase(name, "Running", timeout=90)
        shown[name] = wait_for(f"output of {name}", partial(output, kubelet, running))
    for lines in shown.values():
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50" in lines
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in lines
        assert "control" in lines
        assert any(" /dev/shm tmpfs rw,nosuid,nodev,noexec" in line for line in lines)
    assert "one" not in shown["one"]
    assert "one" in shown["other"], "each has a /dev/shm of its own"

    (daemon,) = daemons(api)
    uid = made["metadata"]["uid"]
    assert daemon["metadata"]["name"] == f"mps-{uid}"
    wait_for("readiness of the daemon", lambda: ready(daemons(api)))
    pipe = driver.state(kubelet.name) / "mps" / uid / "pipe"
    host = driver.hardware[kubelet.name].host_root
    assert answer(host, pipe, "get_default_active_thread_percentage") == "50"
    assert answer(host, pipe, "get_default_device_pinned_mem_limit 0") == "8192M"

    os.kill(int((pipe / "nvidia-cuda-mps-control.pid").read_text()), 9)
    wait_for("restart of the daemon", lambda: restarts(daemons(api)) == 1, timeout=60)
    wait_for(
        "limits of the new daemon",
        lambda: answer(host, pipe, "get_default_active_thread_percentage") == "50",
        context=driver.tails,
    )

    for name in shown:
        api.delete("Pod", name, grace=1)
    wait_for("the end of the daemon", lambda: daemons(api) == [], timeout=60)
    wait_for("the end of the slice", lambda: agreement.settle(context=driver.tails) == {})
    assert not pipe.exists()


@pytest.mark.timeout(240)
def test_of_a_claim_with_two_devices_the_container_of_one_is_the_client(
    *,
    agreement: Agreement,
    api: Api,
    kubelet: KubeletNode,
    driver: Driver,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    """As NVIDIA's sample gpu-test5: each container names a request of the claim."""
    body = example()
    devices = body["spec"]["devices"]
    shared = devices["requests"][0]["name"]
    assert devices["config"][0]["requests"] == [shared]
    devices["requests"].append({"name": "own", "exactly": {"deviceClassName": "mig-1g.5gb"}})
    made = workload.create(body)
    commands = {name: ["sh", "-c", f"NAME={name}; {SHOW}"] for name in (shared, "own")}
    claims = {"both": {"resourceClaimName": made["metadata"]["name"]}}
    user = pod("user", commands, claims=claims, **where)
    for container in user["spec"]["containers"]:
        container["resources"]["claims"] = [{"name": "both", "request": container["name"]}]
    workload.create(user)
    running = workload.wait_for_phase("user", "Running", timeout=90)
    lines = {n: wait_for(n, partial(output, kubelet, running, n)) for n in (shared, "own")}
    assert {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50", "control"} <= {*lines[shared]}
    assert not {line for line in lines["own"] if "CUDA_MPS" in line or line == "control"}
    api.delete("Pod", "user", grace=1)
    wait_for("the end of the daemon", lambda: daemons(api) == [], timeout=60)
    wait_for("the end of the slices", lambda: agreement.settle(context=driver.tails) == {})


@pytest.mark.timeout(240)
def test_a_container_beside_another_claim_hears_it_from_the_node(
    *,
    agreement: Agreement,
    api: Api,
    kubelet: KubeletNode,
    plugin: Process,
    workload: Workload,
    where: dict[str, Any],
) -> None:
    """The claims were allocated by somebody who knows no MPS, as kube-scheduler."""
    shared = workload.create(example())
    claims = {
        "slice": {"resourceClaimName": shared["metadata"]["name"]},
        "beside": workload.claim("beside", device_class="mig-1g.5gb"),
    }
    config = [{"source": "FromClaim", **c} for c in shared["spec"]["devices"]["config"]]
    for name, request, device in (
        (shared["metadata"]["name"], config[0]["requests"][0], "gpu-0-mig-3g20gb-9-0"),
        ("beside", "slice", "gpu-0-mig-1g5gb-19-5"),
    ):
        given = AllocatedDevice(request, DRIVER, kubelet.name, device)
        stamp = rfc3339(datetime.now(UTC))
        allocation = write_allocation(
            [given], kubelet.name, timestamp=stamp, config=config if name != "beside" else ()
        )
        status = {"status": {"allocation": allocation}}
        api.patch("ResourceClaim", name, status, subresource="status")
    workload.create(pod("both", SLEEPING, claims=claims, **where))

    def told() -> str:
        events = api.list("Event", fieldSelector="involvedObject.name=both")
        said = [e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"]
        return next(iter(said), "")

    message = wait_for("kubelet's event", told, timeout=90, context=workload.describe)
    assert "pod both: container 'main' uses claims beside, mps-slice" in message
    assert "name one of these claims in its resources.claims" in message
    assert daemons(api) == []


def ready(pods: list[Obj]) -> bool:
    (found,) = pods
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in found.get("status", {}).get("conditions", ())
    )


def restarts(pods: list[Obj]) -> int:
    (found,) = pods
    (status,) = found["status"]["containerStatuses"]
    return int(status["restartCount"])
