"""Pods of high priority get slices where others fill the CPU: kube-scheduler ends some of them.

On Kubernetes 1.34 to 1.36, by themselves and as a gang.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import Setup
from tests.cluster.harness.pods import pod
from tests.cluster.harness.slicesite import Ground, Site, ground, site_on
from tests.cluster.harness.workload import SLEEPING
from tests.cluster.scheduling.test_gangs import APIS, GATES
from tests.controller.helpers.objects import FINALIZER

NODES: dict[str, Obj] = {f"fake-high-{n}": {} for n in range(4)}
URGENT = "system-cluster-critical"
GATED = [{"name": FINALIZER}]

pytestmark = pytest.mark.timeout(300)

either = pytest.mark.parametrize("gates", [GATED, []], ids=["gated", "ungated"])


@pytest.fixture(scope="module", params=["1.34", "1.35", "1.36"])
def running(request: pytest.FixtureRequest, binaries: Binaries, root: Path) -> Iterator[Ground]:
    number = request.param
    setup = Setup(emulated=number)
    with ground(binaries, root / f"high{number[2:]}", NODES, setup=setup) as made:
        assert made[0].api.request("GET", "/version")["emulationMinor"] == number[2:]
        yield made


@pytest.fixture(scope="module")
def knowing(binaries: Binaries, root: Path) -> Iterator[Ground]:
    """A cluster whose kube-scheduler knows gangs.

    1.36.2 may try a part of a gang first, as its pods lose their gates, or their claims are
    allocated, one after the other. Then it ends others for these and forgets why: it tries them
    again when they have waited for so long (``flushUnschedulablePodsLeftover``), every 30 s.
    """
    waits = {"pod-max-in-unschedulable-pods-duration": "5s"}
    setup = Setup(gates=GATES, apis=APIS, scheduler_flags=waits)
    with ground(binaries, root / "highgang", NODES, setup=setup) as made:
        yield made


@contextlib.contextmanager
def _filled(running: Ground) -> Iterator[Site]:
    with site_on(running) as made:
        for name in NODES:
            made.workload.create(pod(f"filler-{name}", SLEEPING, cpu="4", nodeName=name))
        yield made


@pytest.fixture
def site(running: Ground) -> Iterator[Site]:
    with _filled(running) as made:
        yield made


@either
def test_a_pod_of_high_priority_gets_a_slice_where_others_fill_the_cpu(
    site: Site, gates: list[Obj]
) -> None:
    """Their nodes are the only ones.

    Those that are not gated it has refused for their cpu before they are allocated, and would try
    anew after five minutes.
    """
    site.start(2, "urgent", cpu="2", priorityClassName=URGENT, schedulingGates=gates)
    assert len(site.nodes(timeout=30)) == 2
    site.check_writes()
