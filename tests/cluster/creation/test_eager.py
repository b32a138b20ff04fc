"""A slice that is made before a real kubelet asks for it, so that Prepare makes none."""

from __future__ import annotations

import pytest

from dra.claims.allocation import node_label
from dra.common.resources import Obj
from kubeletplugin.journal.journal import decode
from sim.processes import wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER
from tests.cluster.harness.pods import pod
from tests.cluster.harness.stage import Stage
from tests.cluster.harness.workload import SLEEPING

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
MISSING: Obj = {"volumes": [{"name": "v", "configMap": {"name": "comes-later"}}]}
"""Kubelet asks for a pod's claims once the volumes that its containers mount are there: ``SyncPod``
in pkg/kubelet/kubelet.go waits for them before it calls the runtime's, which begins with claims."""


def waiting_pod(name: str, stage: Stage) -> Obj:
    """A pod on the real node for which kubelet does not ask yet; its claim."""
    workload = stage.workload
    claims = {"gpu": workload.template(name, device_class="mig-2g.10gb")}
    body = pod(name, SLEEPING, claims=claims, **stage.where, **MISSING)
    for container in body["spec"]["containers"]:
        container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    workload.create(body)
    workload.wait_for_node(name)
    return workload.wait_for_allocation(name)


def wait_for_slice(claim: Obj, stage: Stage) -> None:
    """Until the slice of a claim is there, recorded as made before kubelet asked."""
    path, uid = stage.driver.state(stage.kubelet.name) / "journal.json", claim["metadata"]["uid"]

    def made() -> bool:
        entries = [e for e in decode(path.read_bytes()).entries if e.claim.uid == uid]
        assert all(e.early for e in entries), "kubelet was told of it"
        return any(e.ci_id is not None for e in entries)

    wait_for("slice", made, context=stage.driver.tails)
    assert [each for each in stage.agreement.slices().values() if each is not None]


def creations(agreement: Agreement) -> int:
    return sum(call.function.startswith(CREATE) for call in agreement.machine.mutations())


@pytest.mark.timeout(240)
def test_prepare_makes_nothing_of_what_was_made_before(stage: Stage) -> None:
    agreement, api, workload = stage.agreement, stage.api, stage.workload
    claim = waiting_pod("early", stage)
    wait_for_slice(claim, stage)
    labels = api.get("ResourceClaim", claim["metadata"]["name"])["metadata"]["labels"]
    assert labels[node_label(DRIVER)] == stage.kubelet.name
    before = creations(agreement)

    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "comes-later"}}
    api.create(body)
    workload.wait_for_phase("early", "Running", timeout=120)
    api.delete("ConfigMap", "comes-later")
    assert creations(agreement) == before
    assert len(agreement.settle(context=workload.describe)) == 1
