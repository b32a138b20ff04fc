"""Pods that another scheduler than kube-scheduler's default binds, on real ones side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import controlplane
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.machine import free_ports
from sim.processes import Process
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import Site, node, site, template
from tests.cluster.harness.workload import SLEEPING

SECOND = "second"
NODES = {"ours": ("controller", 1), "theirs": ("scheduler", 1)}
SLICES = 7


@pytest.fixture(scope="module")
def both(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A node of either allocator, and a second kube-scheduler with a name of its own."""
    home = root / "os"
    with site(binaries, home, NODES, {}, schedulers=("default-scheduler", SECOND)) as made:
        plane = made.driver.control_plane
        config = home / "second.json"
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig(controlplane.SCHEDULER))},
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": SECOND}],
        }
        config.write_text(json.dumps(content))
        (port,) = free_ports(1)
        command = [binaries.path("kube-scheduler"), f"--config={config}", f"--secure-port={port}"]
        command += ["--bind-address=127.0.0.1", f"--cert-dir={home / 'second'}"]
        template(made.api, "mig-1g.5gb")
        made.wait("slices", lambda: made.published("theirs"))
        second = Process(SECOND, command, logs=home)
        second.start()
        try:
            yield made
        finally:
            second.stop()


@pytest.fixture(autouse=True)
def ended(both: Site) -> Iterator[None]:
    """Nothing is left after a test."""
    yield
    for each in both.api.list("Pod"):
        both.api.delete("Pod", each["metadata"]["name"], grace=0)
    both.wait("end of all claims", lambda: both.api.list("ResourceClaim") == [])


def start(api: Api, name: str, scheduler: str, allocator: str) -> str:
    claims = {"gpu": {"resourceClaimTemplateName": "mig-1g.5gb"}}
    selector = {"allocator": allocator}
    body = pod(name, SLEEPING, claims=claims, nodeSelector=selector, schedulerName=scheduler)
    api.create(body)
    return name


def test_the_controller_allocates_for_both_at_once(both: Site) -> None:
    """One program decides what pods of either scheduler get, so that nothing is given twice."""
    api = both.api
    names = (SECOND, "default-scheduler")
    pods = [start(api, f"at-once-{n}", names[n % 2], "controller") for n in range(SLICES)]
    both.wait("all on the node", lambda: all(node(api, each) == "ours" for each in pods))
    assert len(set(both.devices("ours"))) == SLICES
    both.assert_disjoint()


def test_a_pod_of_a_scheduler_that_is_not_named_waits_and_takes_nothing(both: Site) -> None:
    api = both.api
    start(api, "waits", "nobody", "controller")

    def told() -> bool:
        events = api.list("Event", fieldSelector="involvedObject.name=waits")
        return any(each["reason"] == "WaitingForScheduler" for each in events)

    both.wait("the reason", told)
    assert both.devices("ours") == []
    pods = [start(api, f"bound-{n}", SECOND, "controller") for n in range(SLICES)]
    both.wait("all others", lambda: all(node(api, each) == "ours" for each in pods))
    both.assert_disjoint()


def test_either_scheduler_allocates_slices_that_are_published(both: Site) -> None:
    """One after the other: two that allocate the same pool at once do not know of each other."""
    api = both.api
    first = [start(api, f"first-{n}", "default-scheduler", "scheduler") for n in range(3)]
    both.wait("the first", lambda: all(node(api, each) == "theirs" for each in first))
    then = [start(api, f"then-{n}", SECOND, "scheduler") for n in range(SLICES - 3)]
    both.wait("the others", lambda: all(node(api, each) == "theirs" for each in then))
    assert len(both.devices("theirs")) == SLICES
    both.assert_disjoint()
