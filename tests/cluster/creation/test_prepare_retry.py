"""A claim whose Prepare failed is prepared as soon as that works, long before kubelet retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from dra.claims.allocation import node_label
from dra.common.resources import Obj
from dra.gpu.names import prepare_retry
from dra.kube.timing import rfc3339
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from kubeletplugin.journal.journal import decode
from sim.nvml.faults import Fault
from sim.processes import Process, wait_for
from tests.cluster.harness.agreement import Agreement
from tests.cluster.harness.daemons import DRIVER, Driver, registrations, start_registered
from tests.cluster.harness.pods import pod
from tests.cluster.harness.stage import Stage
from tests.cluster.harness.workload import SLEEPING, Workload

KUBELET_SECONDS = 60.0
"""Kubelet repeats a failed Prepare after syncFrequency, a minute unless configured, times 1 to 1.5:
``completeWork`` in pkg/kubelet/pod_workers.go."""


FAILED = "FailedPrepareDynamicResources"


@pytest.fixture
def kubelet_as_usual(kubelet: KubeletNode, driver: Driver) -> Iterator[None]:
    """A kubelet with its own syncFrequency; other tests have a short one."""
    _configure(kubelet, driver.plugins[kubelet.name], "1m")
    yield
    _configure(kubelet, driver.plugins[kubelet.name], "5s")


def _configure(kubelet: KubeletNode, plugin: Process, frequency: str) -> None:
    seen = registrations(plugin)
    kubelet.configure(syncFrequency=frequency)
    wait_for("registration", lambda: registrations(plugin) > seen, context=plugin.tail)


def marked(api: Api, name: str) -> str:
    """The annotation of a pod by which kubelet was told to ask again."""
    annotations = api.get("Pod", name)["metadata"].get("annotations") or {}
    return str(annotations.get(prepare_retry(DRIVER), ""))


def wait_for_failure(api: Api, name: str, workload: Workload) -> None:
    """Until kubelet has told that a Prepare for a pod failed."""

    def told() -> bool:
        return any(
            event["reason"] == FAILED and event["involvedObject"]["name"] == name
            for event in api.list("Event")
        )

    wait_for("failed Prepare", told, context=workload.describe)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("kubelet_as_usual")
@pytest.mark.parametrize("action", ["crash-before", "crash-after"])
def test_after_a_kill_in_a_creation_the_pod_runs_soon_after_the_plugin_is_back(
    *, action: Any, stage: Stage
) -> None:
    agreement, api, workload, where = stage.agreement, stage.api, stage.workload, stage.where
    plugin = stage.plugin
    claims = {"gpu": workload.template("killed", device_class="mig-2g.10gb")}
    agreement.machine.inject(
        Fault(function="nvmlDeviceCreateGpuInstanceWithPlacement", action=action)
    )
    workload.create(pod("killed", SLEEPING, claims=claims, **where))
    wait_for("end of the plugin", lambda: not plugin.running, timeout=60, context=plugin.tail)
    failed = time.monotonic()
    wait_for_failure(api, "killed", workload)

    start_registered(plugin)
    back = time.monotonic()
    workload.wait_for_phase("killed", "Running", timeout=2 * KUBELET_SECONDS)
    ran = time.monotonic()
    print(f"{action}: running {ran - back:.1f} s after the plugin was registered")  # noqa: T201
    assert ran - failed < KUBELET_SECONDS, "kubelet came by itself"
    assert marked(api, "killed")
    assert len(agreement.settle(context=workload.describe)) == 1


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("kubelet_as_usual")
def test_when_a_holder_lets_go_the_pod_runs_soon(stage: Stage) -> None:
    agreement, api, workload = stage.agreement, stage.api, stage.workload
    machine = agreement.machine
    reference = workload.claim("held", device_class="mig-1g.5gb")
    api.patch("ResourceClaim", "held", allocation(stage.kubelet.name), subresource="status")
    slot = machine.create_slice(0, "1g.5gb", start=5)
    workload.create(pod("waits", SLEEPING, claims={"gpu": reference}, **stage.where))
    failed = time.monotonic()
    wait_for_failure(api, "waits", workload)
    assert marked(api, "waits") == ""

    def listed() -> bool:
        status = api.get("MigNode", stage.kubelet.name)["status"]
        starts = [i["placement"]["start"] for i in status["gpus"][0].get("instances", ())]
        return 5 in starts and bool(status.get("failedClaims"))

    wait_for("failure in the MigNode", listed, context=workload.describe)
    machine.destroy_slice(0, slot.gpu_instance)
    free = time.monotonic()
    workload.wait_for_phase("waits", "Running", timeout=2 * KUBELET_SECONDS)
    ran = time.monotonic()
    print(f"holder: running {ran - free:.1f} s after the slice was gone")  # noqa: T201
    assert ran - failed < KUBELET_SECONDS, "kubelet came by itself"
    assert marked(api, "waits")


def allocation(node: str) -> Obj:
    """The device at memory slice 5, written by somebody who knows nothing of what is there."""
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    device = {"request": "slice", "driver": DRIVER, "pool": node, "device": "gpu-0-mig-1g5gb-19-5"}
    return {
        "status": {
            "allocation": {
                "allocationTimestamp": rfc3339(datetime.now(UTC)),
                "devices": {"results": [device]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            }
        }
    }


# -- a slice that is made before a real kubelet asks for it, so that Prepare makes none


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
