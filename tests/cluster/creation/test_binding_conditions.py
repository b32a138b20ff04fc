"""Pods that a real kube-scheduler binds only once their slices are made, on a real kubelet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.claims.conditions import SLICE_MADE
from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import Setup
from kubeletplugin.journal.journal import decode
from sim.nvml.faults import Fault
from sim.nvml.machine import Machine
from sim.processes import Process, wait_for
from tests.cluster.harness.daemons import start_registered
from tests.cluster.harness.nodesite import NodeSite, running_node
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import site, start, template
from tests.cluster.harness.workload import SLEEPING

NAME = "bound"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
REFUSED = 2
"""NVML_ERROR_INVALID_ARGUMENT: it does not pass by itself."""
ALWAYS = ("--allocator", "scheduler", "--binding-conditions", "always")
BINDING_SECONDS = 15


class Ground(NodeSite):
    """A node that runs pods, whose two GPUs kube-scheduler allocates."""

    @property
    def plugin(self) -> Process:
        return self.driver.plugins[NAME]

    def create(self, name: str) -> None:
        claims = {"gpu": {"resourceClaimTemplateName": "slice"}}
        self.workload.create(pod(name, SLEEPING, claims=claims))

    def given(self, name: str) -> str:
        """The device that the claim of a pod was given, or an empty string."""
        claim = self.workload.claim_of(name) or {}
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results")
        return str(results[0]["device"]) if results else ""

    def conditions(self, name: str) -> set[str]:
        """The conditions of a pod's claim that are True."""
        devices = (self.workload.claim_of(name) or {}).get("status", {}).get("devices", [])
        return {c["type"] for d in devices for c in d["conditions"] if c["status"] == "True"}

    def devices(self) -> list[Obj]:
        slices = self.api.list("ResourceSlice", fieldSelector=f"spec.nodeName={NAME}")
        return [d for s in slices for d in s["spec"].get("devices", [])]

    def settle(self, count: int) -> None:
        """Until there are as many slices as that, each on record as prepared, and nothing else."""

        def settled() -> bool:
            gpus = self.machine.state().gpus
            made = {c.uuid for g in gpus for i in g.gpu_instances for c in i.compute_instances}
            instances = sum(len(g.gpu_instances) for g in gpus)
            path = self.driver.state(NAME) / "journal.json"
            entries = decode(path.read_bytes()).entries if path.exists() else ()
            states = {e.mig_uuid: e.state.value for e in entries}
            return instances == count and states == dict.fromkeys(made, "prepared")

        wait_for(f"{count} slices and nothing else", settled, context=self.driver.tails)


@pytest.fixture(scope="module")
def ground(binaries: Binaries, root: Path) -> Iterator[Ground]:
    """kube-scheduler waits for 15 s, not for ten minutes."""
    home = root / "bc"
    home.mkdir()
    config = home / "scheduler.json"
    config.write_text(json.dumps(scheduler_config(home / "cp")))
    setup = Setup(scheduler_flags={"config": str(config)})
    gpus = ("A100-SXM4-40GB",) * 2
    with running_node(binaries, home, name=NAME, gpus=gpus, options=ALWAYS, setup=setup) as site:
        made = Ground(site.api, site.driver, site.machine, site.workload, site.kubelet)
        wait_for("slices", lambda: len(made.devices()) == 50, context=site.driver.tails)
        wait_for("class", lambda: site.api.find("DeviceClass", "mig-2g.10gb"))
        template(site.api, "mig-2g.10gb", name="slice")
        yield made


def scheduler_config(plane: Path) -> Obj:
    """As the flags of ControlPlane say it, which do not count beside a file."""
    arguments = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "DynamicResourcesArgs",
        "bindingTimeout": f"{BINDING_SECONDS}s",
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane / "system-kube-scheduler.kubeconfig")},
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {
                "schedulerName": "default-scheduler",
                "pluginConfig": [{"name": "DynamicResources", "args": arguments}],
            }
        ],
    }


@pytest.fixture(autouse=True)
def cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is left on the node, and no GPU is left out, when a test has ended."""
    yield
    if "ground" in request.fixturenames:
        ground: Ground = request.getfixturevalue("ground")
        ground.machine.clear_faults()
        ground.workload.clear()
        ground.settle(0)
        ground.plugin.stop()
        start_registered(ground.plugin)
        wait_for("no taints", lambda: not any(d.get("taints") for d in ground.devices()))


@pytest.mark.timeout(240)
def test_a_pod_is_bound_once_its_slice_is_made_and_never_where_it_cannot_be(ground: Ground) -> None:
    assert {tuple(d["bindingConditions"]) for d in ground.devices()} == {(SLICE_MADE,)}
    ground.create("plain")
    ground.workload.wait_for_phase("plain", "Running", timeout=60)
    assert ground.given("plain").startswith("gpu-0-")
    assert "BindingConditionsPending" in ground.told("plain")
    assert ground.conditions("plain") == {SLICE_MADE, "Ready"}

    no = Fault(id="no", function=CREATE, gpu=0, action="return", code=REFUSED, times=0)
    ground.machine.inject(no)
    ground.create("doubtful")
    given: list[str] = []

    def running() -> bool:
        found = ground.api.get("Pod", "doubtful")
        device = ground.given("doubtful")
        if device and device not in given:
            given.append(device)
        if found["spec"].get("nodeName"):
            assert device.startswith("gpu-1-"), "bound where its slice cannot be made"
        return bool(found["status"].get("phase") == "Running")

    wait_for("the pod", running, timeout=90, context=ground.workload.describe)
    assert [device[:6] for device in given] == ["gpu-0-", "gpu-1-"]
    told = ground.told("doubtful")
    assert "FailedScheduling" in told
    assert not {reason for reason in told if reason.startswith("FailedPrepare")}
    tainted = {d["name"][:5] for d in ground.devices() if d.get("taints")}
    assert tainted == {"gpu-0"}
    ground.settle(2)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("function", [CREATE, "nvmlGpuInstanceCreateComputeInstance*"])
def test_after_a_kill_in_the_middle_the_pod_runs_and_nothing_is_left(
    ground: Ground, function: str
) -> None:
    ground.machine.inject(Fault(id="dies", function=function, action="crash-after", times=1))
    ground.create("killed")
    wait_for("the kill", lambda: not ground.plugin.running, context=ground.workload.describe)
    assert ground.conditions("killed") == set()
    start_registered(ground.plugin)
    ground.workload.wait_for_phase("killed", "Running", timeout=60)
    ground.settle(1)


@pytest.mark.timeout(240)
def test_when_kube_scheduler_has_waited_long_enough_it_begins_anew(ground: Ground) -> None:
    hang = Fault(id="hangs", function=CREATE, gpu=0, action="hang", times=1)
    ground.machine.inject(hang)
    ground.create("late")
    wait_for(
        "the end of its patience",
        lambda: "FailedScheduling" in ground.told("late"),
        timeout=4 * BINDING_SECONDS,
        context=ground.workload.describe,
    )
    assert not ground.api.get("Pod", "late")["spec"].get("nodeName")
    ground.machine.clear_faults()
    ground.workload.wait_for_phase("late", "Running", timeout=90)
    ground.settle(1)


def test_where_the_gate_is_off_nothing_waits(binaries: Binaries, root: Path) -> None:
    gates = {"DRADeviceBindingConditions": False}
    with site(binaries, root / "bg", {"lone": ("scheduler", 1)}, gates, flags=ALWAYS) as made:
        made.wait("slices", lambda: made.published("lone"))
        devices = [d for s in made.slices("lone") for d in s["spec"].get("devices", [])]
        assert len(devices) == 25
        assert not any("bindingConditions" in d for d in devices)
        template(made.api, "mig-1g.5gb")
        start(made.api, "lone-0", "1g.5gb")
        made.wait("node", lambda: made.api.get("Pod", "lone-0")["spec"].get("nodeName"))
        (claim,) = made.api.list("ResourceClaim")
        wait_for(
            "the slice, made ahead of a kubelet that never asks",
            lambda: any(
                g.gpu_instances for g in Machine(made.driver.hardware["lone"].state).state().gpus
            ),
            context=made.driver.tails,
        )
        assert "devices" not in made.api.get("ResourceClaim", claim["metadata"]["name"])["status"]
