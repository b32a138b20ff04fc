"""The chart as it is, on real nodes: its own pods, accounts and mounts give a pod its slice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster.api import collection
from hack.cluster.binaries import NODE, Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.cluster import Cluster, Shape
from sim.processes import wait_for
from tests.cluster.harness.accounts import CONTROLLER, PLUGIN, acting
from tests.cluster.harness.audit import Request, audit
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import Workload
from tests.cluster.node.test_slice_pod import SHOW
from tests.cluster.rbac.requests import refusal

MOST_KIB = 70 * 1024
"""What a plugin may take of its node; the simulated NVML is in the process here."""
SHAPE = Shape({"one": ("A100-SXM4-40GB",), "two": ("H100-80GB-HBM3",)})


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, root: Path) -> Iterator[Cluster]:
    if reason := binaries.missing(NODE):
        pytest.skip(reason)
    home = root / "i"
    home.mkdir()
    with Cluster(binaries, home, SHAPE) as running:
        yield running
    assert [each.leftovers() for each in running.nodes.values()] == [[], []]


@pytest.fixture
def workload(cluster: Cluster) -> Iterator[Workload]:
    tracked = Workload(cluster.control_plane.api, tails=cluster.tails)
    yield tracked
    tracked.clear()


@pytest.mark.parametrize(
    ("node", "profile"), [("one", "1g.5gb"), ("two", "3g.40gb")], ids=["one", "two"]
)
def test_a_pod_gets_its_slice_from_the_charts_own_pods(
    cluster: Cluster, workload: Workload, node: str, profile: str
) -> None:
    """Each of two kubelets on the machine has GPUs of its own."""
    api = cluster.control_plane.api
    claims = {"gpu": workload.template(f"on-{node}", device_class=f"mig-{profile}")}
    workload.create(pod(f"on-{node}", {"main": ["sh", "-c", SHOW]}, claims=claims))
    running = workload.wait_for_phase(f"on-{node}", "Running")
    assert running["spec"]["nodeName"] == node

    (instance,) = instances(cluster, node)
    assert instance["profile"] == profile
    assert instance["claim"]["name"] == workload.claim_of(f"on-{node}")["metadata"]["name"]  # type: ignore[index]
    lines = wait_for("output", lambda: cluster.nodes[node].log(running, "main").splitlines()[2:])
    assert all("nvidia-cap" in each for each in lines)
    claim = workload.claim_of(f"on-{node}")
    assert claim is not None
    wait_for(
        "status.devices",
        lambda: api.get("ResourceClaim", claim["metadata"]["name"])["status"].get("devices"),
        context=cluster.tails,
    )

    workload.clear()
    wait_for("free GPU", lambda: instances(cluster, node) == [], context=cluster.tails)
    assert list(cluster.nodes[node].cdi_root.glob("*claim*")) == []


def test_nothing_that_the_daemons_asked_for_was_denied(cluster: Cluster) -> None:
    """In all of the above: reads, watches and writes, of both accounts."""
    mark = audit(cluster.control_plane).mark()
    asked = requests(cluster)
    assert {account for account, _ in asked} == {PLUGIN, CONTROLLER}
    assert {"list", "patch", "update"} <= {each.verb for _, each in asked}
    assert [each for _, each in asked if each.status in {401, 403, 422}] == []

    # A denied request would have been seen.
    plugin = acting(cluster.installation, PLUGIN, cluster.installation.pods("kubelet-plugin")[0])
    assert refusal(plugin, "GET", collection("Pod"))[0] == 403
    wait_for(
        "denied request in the log",
        lambda: any(each.status == 403 for _, each in requests(cluster, since=mark)),
    )


@pytest.mark.parametrize("node", ["one", "two"])
def test_the_plugin_in_its_pod_takes_little_of_the_node(cluster: Cluster, node: str) -> None:
    used = resident_kib(f"--node-name={node}")
    print(f"RSS of the plugin on {node}: {used / 1024:.1f} MiB")  # noqa: T201
    assert used < MOST_KIB


def resident_kib(argument: str) -> int:
    """VmRSS of the only plugin with this argument (proc(5))."""
    (found,) = (
        path.parent
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if {argument.encode(), b"plugin"} <= set(path.read_bytes().split(b"\0"))
    )
    status = (found / "status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def requests(cluster: Cluster, *, since: int = 0) -> list[tuple[str, Request]]:
    """What each of the chart's accounts asked for."""
    accounts = f"system:serviceaccount:{NAMESPACE}:"
    return [
        (each.user.removeprefix(accounts), each)
        for each in audit(cluster.control_plane).requests(since=since)
        if each.user.startswith(accounts)
    ]


def instances(cluster: Cluster, node: str) -> list[dict[str, object]]:
    gpus = cluster.control_plane.api.get("MigNode", node)["status"]["gpus"]
    return [instance for gpu in gpus for instance in gpu.get("instances", [])]
