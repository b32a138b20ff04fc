"""Cluster autoscaler, the real one, over nodes whose slices are all given out.

Its program ``cluster-autoscaler`` is taken from the folder of the Kubernetes binaries, if it is
there, and has to know the provider ``kwok``, whose new nodes are Node objects alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN
from hack.cluster.installation import apply
from hack.cluster.machine import free_ports
from sim.processes import Process
from tests.cluster.harness.pods import add_fake_node, pod
from tests.cluster.harness.schedulersite import A100, FINALIZER, Site, node, site, template
from tests.cluster.harness.workload import SLEEPING

PROGRAM = "cluster-autoscaler"
GROUP = "nodegroup"
SLICES = 7
MORE_THAN_HALF = "5"
NOT_ITS_POOL = "from a pool that isn't node-local on ours - can't be sanitized"
"""Words by which the autoscaler gives up: a claim's devices are in no slice of the node."""


@pytest.fixture(scope="module")
def with_autoscaler(binaries: Binaries) -> Binaries:
    if reason := binaries.missing((PROGRAM,)):
        pytest.skip(reason)
    return binaries


def mark(api: Api, name: str) -> None:
    """Make a node the first of a group of nodes, called as it is."""
    marks = {"kwok.x-k8s.io/node": "fake", "cluster-autoscaler.kwok.nodegroup/name": name}
    body = {"metadata": {"labels": {GROUP: name}, "annotations": marks}}
    api.patch("Node", name, body | {"spec": {"providerID": f"kwok:{name}"}})


@contextmanager
def scaling(site: Site, binaries: Binaries, home: Path) -> Iterator[Process]:
    """The autoscaler, for which each node that is marked is the pattern of its group."""
    api = site.api
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "cluster",
        "nodegroups": {"fromNodeLabelKey": GROUP},
        "nodes": {"skipTaint": True},
    }
    data = {"config": json.dumps(config)}
    name = {"name": "kwok-provider-config", "namespace": "default"}
    apply(api, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data})
    kubeconfig = str(site.driver.control_plane.kubeconfig(ADMIN))
    (port,) = free_ports(1)
    program = Process(
        PROGRAM,
        [
            binaries.path(PROGRAM),
            *("--cloud-provider=kwok", f"--kubeconfig={kubeconfig}", "--namespace=default"),
            *("--enable-dynamic-resource-allocation", "--scale-down-unneeded-time=5s"),
            *("--scale-down-delay-after-add=0s", "--leader-elect=false"),
            *("--scan-interval=1s", f"--address=127.0.0.1:{port}"),
        ],
        logs=home,
        environment={
            **os.environ,
            "KUBECONFIG": kubeconfig,
            "KWOK_PROVIDER_MODE": "local",
            "POD_NAMESPACE": "default",
        },
    )
    program.start()
    try:
        yield program
    except BaseException:
        print(program.tail(lines=60))  # noqa: T201 - the reason of a failure
        raise
    finally:
        program.stop()


def start(api: Api, name: str, **spec: Any) -> str:
    claims = {"slice": {"resourceClaimTemplateName": "mig-1g.5gb"}}
    api.create(pod(name, SLEEPING, claims=claims, **spec))
    return name


def fill(made: Site, group: str, **spec: Any) -> None:
    """Give out all slices of the one GPU of the node that is there."""
    template(made.api, "mig-1g.5gb")
    pods = [start(made.api, f"filling-{number}", **spec) for number in range(SLICES)]
    made.wait("a full GPU", lambda: all(node(made.api, each) == group for each in pods))


def reasons(api: Api, name: str) -> set[str]:
    """Reasons of the events of a pod."""
    events = api.list("Event", fieldSelector=f"involvedObject.name={name}")
    return {each["reason"] for each in events}


GATED = {"schedulingGates": [{"name": FINALIZER}]}


@pytest.mark.parametrize("spec", [{}, GATED], ids=["plain", "steered"])
def test_a_node_is_made_for_a_slice_where_kube_scheduler_allocates_and_goes_again(
    with_autoscaler: Binaries, root: Path, spec: Obj
) -> None:
    """Two pods more than there is room for: one new node has room for both."""
    home, nodes = root / f"ca{len(spec)}", {"theirs": ("scheduler", 1)}
    with site(with_autoscaler, home, nodes, {}, controller_flags=("--autoscaler",)) as made:
        api, driver = made.api, made.driver
        made.wait("slices", lambda: made.published("theirs"))
        fill(made, "theirs", **spec)
        more = [start(api, f"more-{number}", **spec) for number in range(2)]
        mark(api, "theirs")
        with scaling(made, with_autoscaler, home):
            made.wait("a node", lambda: len(api.list("Node")) > 1, timeout=120)
            made.wait("its events", lambda: "TriggeredScaleUp" in reasons(api, more[0]))
            (new,) = {each["metadata"]["name"] for each in api.list("Node")} - {"theirs"}
            driver.add_node(
                new,
                *("--allocator", "scheduler"),
                gpus=(A100,),
                kubelet_root=home / "new-k",
                cdi_root=home / "new-cdi",
            )
            plugin = driver.plugins[new]
            plugin.start()
            try:
                made.wait("pods", lambda: all(node(api, each) == new for each in more))
                made.assert_disjoint()
                assert len(api.list("Node")) == 2
                for each in more:
                    api.delete("Pod", each, grace=0)
                made.wait("one node less", lambda: api.find("Node", new) is None, timeout=120)
                assert api.find("Node", "theirs")
            finally:
                plugin.stop()


def test_nodes_of_the_controller_in_its_groups_neither_stop_it_nor_go(
    with_autoscaler: Binaries, root: Path
) -> None:
    """It makes no node for their claims, serves other groups, and leaves what is in use."""
    home = root / "cn"
    with site(with_autoscaler, home, {"ours": ("controller", 1)}, {}) as made:
        api = made.api
        fill(made, "ours")
        for name in ("plain", "idle"):
            add_fake_node(api, name)
        for name in ("ours", "plain", "idle"):
            mark(api, name)
        start(api, "more")
        for name in ("large-0", "large-1"):
            selector = {GROUP: "plain"}
            api.create(pod(name, SLEEPING, cpu=MORE_THAN_HALF, nodeSelector=selector))
        with scaling(made, with_autoscaler, home) as program:
            made.wait("a node", lambda: len(api.list("Node")) == 4, timeout=120)
            made.wait("no room", lambda: "NotTriggerScaleUp" in reasons(api, "more"))
            made.wait("one node less", lambda: api.find("Node", "idle") is None, timeout=120)
            assert NOT_ITS_POOL not in program.tail(lines=1000)
            assert len(api.list("Node")) == 3
            assert api.find("Node", "ours")
