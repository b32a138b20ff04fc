"""Gangs on a real control plane: two groups of pods with room for one and a half.

On Kubernetes 1.34 to 1.36: by label, and in the latest by PodGroups, whose pods kube-scheduler
binds together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import Setup
from sim.processes import wait_for
from tests.cluster.allocators.test_gates import GRACE, Site, site
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, node_of

SIZE = 4
ROOM = 6
"""Of the seven slices of the one GPU, one is somebody else's."""

PATIENCE = 180.0
"""kube-scheduler may bind a pod of a PodGroup before its claim says that it is reserved for it:
then the stand-in for kubelet refuses it, and tries it again after more than a minute."""

GATES = {"GenericWorkload": True, "GangScheduling": True}
APIS = ("scheduling.k8s.io/v1alpha2",)


@pytest.fixture(scope="module", params=["1.34", "1.35", "1.36"])
def running(request: pytest.FixtureRequest, binaries: Binaries, root: Path) -> Iterator[Site]:
    number = request.param
    with site(binaries, root / f"gg{number[2:]}", Setup(emulated=number)) as made:
        assert made.api.request("GET", "/version")["emulationMinor"] == number[2:]
        yield made


@pytest.fixture(scope="module")
def knowing(binaries: Binaries, root: Path) -> Iterator[Site]:
    """A cluster that has PodGroups."""
    with site(binaries, root / "gg", Setup(gates=GATES, apis=APIS)) as made:
        yield made


def create(running: Site, gang: str, *, by_object: bool) -> None:
    """Pods of a gang, each with a slice of its own."""
    labels, spec = {NAME_LABEL: gang, COUNT_LABEL: str(SIZE)}, dict[str, Any](GRACE)
    if by_object:
        group: Obj = {
            "apiVersion": APIS[0],
            "kind": "PodGroup",
            "metadata": {"name": gang},
            "spec": {"schedulingPolicy": {"gang": {"minCount": SIZE}}},
        }
        running.workload.create(group)
        labels, spec["schedulingGroup"] = {}, {"podGroupName": gang}
    claims = {"gpu": running.workload.template(gang, device_class="mig-1g.5gb")}
    for number in range(SIZE):
        body = pod(f"{gang}-{number}", SLEEPING, claims=claims, **spec)
        body["metadata"]["labels"] = labels
        running.workload.create(body)


def held(running: Site, gang: str) -> int:
    """The number of its claims that are allocated."""
    claims = running.api.list("ResourceClaim")
    return sum(c["metadata"]["name"].startswith(f"{gang}-") and bool(node_of(c)) for c in claims)


def told(running: Site, name: str) -> str:
    """Reason why a pod's claims wait, as its condition says."""
    conditions = running.api.get("Pod", name)["status"].get("conditions", [])
    said = (c["message"] for c in conditions if c["type"] == "mig.dra.dev/ClaimsAllocated")
    return str(next(said, ""))


def test_one_gang_is_whole_and_the_other_waits_for_all(running: Site) -> None:
    _check_one_after_the_other(running, by_object=False)


def test_so_it_is_with_pod_groups(knowing: Site) -> None:
    _check_one_after_the_other(knowing, by_object=True)


def _check_one_after_the_other(running: Site, *, by_object: bool) -> None:
    workload, first, second = running.workload, f"first-{by_object:d}", f"second-{by_object:d}"
    single = {"gpu": workload.template("single", device_class="mig-1g.5gb")}
    workload.run(f"single-{by_object:d}", claims=single, **GRACE)
    create(running, first, by_object=by_object)
    for number in range(SIZE):
        workload.wait_for_phase(f"{first}-{number}", "Running", timeout=PATIENCE)
    create(running, second, by_object=by_object)
    needs = f"{second} needs slices for {SIZE} pods at once, and {ROOM - SIZE} fit"
    wait_for(
        "reason that all are told",
        lambda: all(needs in told(running, f"{second}-{n}") for n in range(SIZE)),
        timeout=60,
        context=lambda: f"{told(running, f'{second}-0')}\n{workload.describe()}",
    )
    assert (held(running, first), held(running, second)) == (SIZE, 0)
    for number in range(SIZE):
        running.api.delete("Pod", f"{first}-{number}")
    for number in range(SIZE):
        workload.wait_for_phase(f"{second}-{number}", "Running", timeout=PATIENCE)
    assert held(running, second) == SIZE
    workload.clear()


def test_gangs_that_come_together_never_have_half_each(running: Site) -> None:
    seen: set[tuple[int, int]] = set()

    def one_is_whole() -> bool:
        pair = held(running, "one"), held(running, "two")
        seen.add(pair)
        return SIZE in pair

    for gang in ("one", "two"):
        create(running, gang, by_object=False)
    wait_for("gang", one_is_whole, timeout=60, context=running.workload.describe)
    assert not [pair for pair in seen if min(pair)]
    running.workload.clear()
