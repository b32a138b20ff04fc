"""The claim controller stand-in against an API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dra.claims.claims import POD_CLAIM, SCHEDULER_FINALIZER
from dra.common.resources import NODES, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from sim.kcm import ClaimController
from sim.workloads.controller import WorkloadController
from tests.controller.helpers.objects import node
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.standins import allocate, get_claim, get_pod, gone, holds_for

NODE = "node-1"
OURS = "mig.dra.dev/allocation"


@pytest.fixture(autouse=True)
def controller(api: KubeApi) -> Iterator[ClaimController]:
    controller = ClaimController(api)
    controller.start()
    yield controller
    controller.stop()


def _templated(api: KubeApi, name: str = "a", **spec: Any) -> str:
    """A pod with a template claim; the claim's name."""
    api.create(PODS, standins.pod(name, claim={"resourceClaimTemplateName": "one"}, **spec))
    wait_for("claim", lambda: get_pod(api, name).get("status", {}).get("resourceClaimStatuses"))
    statuses = get_pod(api, name)["status"]["resourceClaimStatuses"]
    assert [s["name"] for s in statuses] == ["slice"]
    return str(statuses[0]["resourceClaimName"])


def _finish(api: KubeApi, name: str, phase: str = "Succeeded") -> None:
    api.patch(PODS, name, {"status": {"phase": phase}}, namespace="default", subresource="status")


def _finalize(api: KubeApi, claim: str, *finalizers: str) -> None:
    body = {"metadata": {"finalizers": list(finalizers)}}
    api.patch(RESOURCE_CLAIMS, claim, body, namespace="default")


def test_a_claim_is_made_from_its_template_for_a_gated_pod_as_well(api: KubeApi) -> None:
    standins.create_template(api, labels={"team": "x"}, annotations={"note": "y"})
    name = _templated(api, schedulingGates=[{"name": "gate"}])
    metadata = get_claim(api, name)["metadata"]
    assert name.startswith("a-slice-")
    assert metadata["labels"] == {"team": "x"}
    assert metadata["annotations"] == {"note": "y", POD_CLAIM: "slice"}
    owner = metadata["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == (get_pod(api, "a")["metadata"]["uid"], True)
    assert get_claim(api, name)["spec"]["devices"]["requests"][0]["name"] == "r0"


def _reserved(api: KubeApi, *finalizers: str, name: str = "shared") -> Obj:
    """A stand-alone claim that is allocated and reserved for pod a, which runs."""
    standins.create_claim(api, name)
    _finalize(api, name, *finalizers)
    pod = api.create(PODS, standins.pod("a", claim={"resourceClaimName": name}, node=NODE))
    allocate(api, name, NODE, consumers=(pod,))
    return pod


def _unreserved(api: KubeApi, name: str = "shared") -> None:
    wait_for("un-reservation", lambda: not get_claim(api, name)["status"].get("reservedFor"))


def test_a_stand_alone_claim_without_the_built_in_finalizer_stays_allocated(api: KubeApi) -> None:
    _reserved(api, OURS)
    _finish(api, "a")
    _unreserved(api)
    assert holds_for(0.3, lambda: "allocation" in get_claim(api, "shared")["status"])


def test_a_claim_under_the_built_in_finalizer_is_deallocated_and_released(api: KubeApi) -> None:
    _reserved(api, SCHEDULER_FINALIZER, OURS)
    _finish(api, "a", "Failed")
    wait_for("deallocation", lambda: "allocation" not in get_claim(api, "shared")["status"])
    wait_for("release", lambda: get_claim(api, "shared")["metadata"]["finalizers"] == [OURS])


def test_a_template_claim_is_deleted_when_its_pod_is_done_and_waits_for_our_finalizer(
    api: KubeApi,
) -> None:
    standins.create_template(api)
    name = _templated(api, node=NODE)
    _finalize(api, name, OURS)
    allocate(api, name, NODE)
    wait_for("reservation", lambda: get_claim(api, name)["status"].get("reservedFor"))
    _finish(api, "a")
    wait_for("deletion", lambda: "deletionTimestamp" in get_claim(api, name)["metadata"])
    assert "allocation" in get_claim(api, name)["status"]
    _finalize(api, name)
    wait_for("the end", lambda: gone(lambda: get_claim(api, name)))


def test_pods_of_a_node_that_is_gone_go_too(api: KubeApi) -> None:
    running = WorkloadController(api)
    running.start()
    for name in ("kept", "gone"):
        api.create(NODES, node(name))
        api.create(PODS, standins.pod(f"on-{name}", node=name))
    api.delete(PODS, "on-gone", namespace="default")  # no kubelet ends it
    api.delete(NODES, "gone")

    def pods() -> list[str]:
        return [pod["metadata"]["name"] for pod in api.list(PODS).items]

    try:
        wait_for("one pod", lambda: pods() == ["on-kept"])
    finally:
        running.stop()
        standins.wipe(api, (PODS, NODES))
