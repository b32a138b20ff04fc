"""A pod that is bound where its slice cannot be made is evicted, and its successor runs."""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from sim.nvml.faults import Fault
from sim.processes import wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING, Workload

CREATION = "nvmlDeviceCreateGpuInstanceWithPlacement"


def replica_set(name: str, template: Obj, **where: Any) -> Obj:
    """One pod, which asks for nothing."""
    labels = {"app": name}
    spec = pod(name, SLEEPING, claims={"gpu": template}, **where)["spec"]
    spec["restartPolicy"] = "Always"
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


@pytest.mark.timeout(300)
def test_a_pod_whose_slice_cannot_be_made_is_evicted_and_its_successor_runs(
    *, agreement: Agreement, api: Api, workload: Workload, where: dict[str, Any]
) -> None:
    template = workload.template("stuck", device_class="mig-2g.10gb")
    agreement.machine.inject(Fault(id="no", function=CREATION, action="return", code=999, times=0))
    workload.create(replica_set("stuck", template, **where))

    def pods() -> list[Obj]:
        return api.list("Pod", labelSelector="app=stuck")

    first = wait_for("pod", pods, context=workload.describe)[0]["metadata"]["uid"]
    wait_for(
        "eviction",
        lambda: all(each["metadata"]["uid"] != first for each in pods()),
        timeout=120,
        context=workload.describe,
    )
    told = wait_for(
        "event",
        lambda: [e for e in api.list("Event") if e["reason"] == "PodEvicted"],
        context=workload.describe,
    )
    assert [e["involvedObject"]["uid"] for e in told] == [first]
    agreement.machine.clear_faults()
    wait_for(
        "successor",
        lambda: any(each["status"].get("phase") == "Running" for each in pods()),
        timeout=120,
        context=workload.describe,
    )
    assert len(agreement.settle(context=workload.describe)) == 1
