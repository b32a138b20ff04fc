"""A pod whose allocated node turns out not to have room for it gets its slice elsewhere."""

from __future__ import annotations

import pytest

from hack.cluster.api import Api
from hack.cluster.controlplane import MIG_CONTROLLER, ControlPlane
from sim.processes import wait_for
from tests.cluster.harness.audit import audit
from tests.cluster.harness.ground import FAKE
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload, node_of


def test_a_node_without_free_cpu_is_not_chosen(api: Api, workload: Workload) -> None:
    claims = {"gpu": workload.template("avoid", device_class="mig-1g.5gb")}
    workload.create(pod("filler", SLEEPING, cpu="2", nodeName="fake-a"))
    for number in range(3):
        workload.create(
            pod(f"avoid-{number}", SLEEPING, cpu="100m", claims=claims, nodeSelector=FAKE)
        )
    nodes = {workload.wait_for_node(f"avoid-{number}") for number in range(3)}
    assert nodes == {"fake-b"}


def test_an_allocation_taken_back_by_the_scheduler_moves_to_another_node(
    api: Api, control_plane: ControlPlane, workload: Workload
) -> None:
    claims = {"gpu": workload.template("move", device_class="mig-1g.5gb")}
    mark = audit(control_plane).mark()
    with control_plane.without_scheduler():
        workload.create(pod("move", SLEEPING, cpu="500m", claims=claims, nodeSelector=FAKE))
        claim = workload.wait_for_allocation("move")
        full = node_of(claim)
        workload.create(pod("filler", SLEEPING, cpu="2", nodeName=full))

    bound = workload.wait_for_node("move")
    assert bound != full
    moved = api.get("ResourceClaim", claim["metadata"]["name"])
    assert node_of(moved) == bound
    assert moved["metadata"]["uid"] == claim["metadata"]["uid"]
    allocations = [
        write
        for write in audit(control_plane).writes(since=mark, user=MIG_CONTROLLER.name)
        if write.resource == "resourceclaims/status" and write.status == 200
    ]
    assert len(allocations) == 2


@pytest.mark.timeout(90)
def test_a_pod_that_fits_nowhere_gets_its_slice_once_a_node_has_room(
    api: Api, control_plane: ControlPlane, workload: Workload
) -> None:
    claims = {"gpu": workload.template("late", device_class="mig-1g.5gb")}
    for node in ("fake-a", "fake-b"):
        workload.create(pod(f"filler-{node}", SLEEPING, cpu="2", nodeName=node))
    workload.create(pod("late", SLEEPING, cpu="500m", claims=claims, nodeSelector=FAKE))
    claim = wait_for("claim", lambda: workload.claim_of("late"))
    name = claim["metadata"]["name"]
    wait_for(
        "event that says why the claim waits",
        lambda: api.list("Event", fieldSelector=f"involvedObject.name={name},type=Warning"),
        context=workload.describe,
    )

    api.delete("Pod", "filler-fake-b", grace=0)
    assert workload.wait_for_node("late") == "fake-b"
