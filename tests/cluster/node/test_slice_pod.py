"""A pod asks for a MIG slice on a real Kubernetes and gets it; deleted, it leaves nothing."""

from __future__ import annotations

import re
from typing import Any

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import Workload

SHOW = (
    'echo "devices=$NVIDIA_VISIBLE_DEVICES"; '
    'for node in /dev/nvidia-caps/*; do echo "$node $(stat -c %F:%t:%T $node)"; done; '
    "sleep 1000000"
)
"""Prints what CDI gave the container; major and minor are hexadecimal."""


def instances_of(api: Api, node: str, claim: Obj) -> list[dict[str, Any]]:
    """The instances on a node that a claim holds, each with the minor of its GPU as `gpu`."""
    gpus = api.get("MigNode", node)["status"]["gpus"]
    return [
        {**instance, "gpu": int(gpu["name"].removeprefix("gpu-"))}
        for gpu in gpus
        for instance in gpu.get("instances", [])
        if instance.get("claim", {}).get("uid") == claim["metadata"]["uid"]
    ]


def cap_nodes(driver: Driver, node: str, instance: dict[str, Any]) -> set[str]:
    """The lines that SHOW prints for an instance, from the host's capability files."""
    hardware = driver.hardware[node]
    gi, ci = f"gi{instance['gpuInstanceID']}", f"ci{instance['computeInstanceID']}"
    major = hardware.caps_major()
    minors = [
        hardware.caps_minor(gpu=instance["gpu"], instance=path) for path in (gi, f"{gi}/{ci}")
    ]
    return {
        f"/dev/nvidia-caps/nvidia-cap{minor} character special file:{major:x}:{minor:x}"
        for minor in minors
    }


def shown(kubelet: KubeletNode, running: Obj, container: str, *, least: int = 3) -> list[str]:
    """Lines that SHOW printed, at ``least`` so many: the environment and the nodes."""

    def lines() -> list[str] | None:
        found = kubelet.log(running, container).splitlines()
        return found if len(found) >= least else None

    return wait_for(f"output of {container}", lines)


def real_node(kubelet: KubeletNode) -> dict[str, Any]:
    """The part of a pod's spec that puts it on the node that runs pods."""
    return {"nodeSelector": {"kubernetes.io/hostname": kubelet.name}}


def test_a_pod_from_a_template_runs_with_its_slice(
    api: Api, driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    claims = {"gpu": workload.template("one", device_class="mig-1g.5gb")}
    commands = {"main": ["sh", "-c", SHOW]}
    workload.create(pod("one", commands, claims=claims, **real_node(kubelet)))
    running = workload.wait_for_phase("one", "Running")

    claim = workload.claim_of("one")
    assert claim is not None
    (instance,) = instances_of(api, kubelet.name, claim)
    first, *nodes = shown(kubelet, running, "main")
    assert first == "devices=void"
    assert set(nodes) == cap_nodes(driver, kubelet.name, instance)


def test_the_status_of_the_claim_describes_the_slice(
    api: Api, kubelet: KubeletNode, workload: Workload
) -> None:
    claims = {"gpu": workload.template("status", device_class="mig-1g.5gb")}
    workload.run("status", claims=claims, **real_node(kubelet))

    def described() -> Obj | None:
        claim = workload.claim_of("status")
        return claim if claim and claim["status"].get("devices") else None

    claim = wait_for("status.devices", described, context=workload.describe)
    (device,) = claim["status"]["devices"]
    assert re.fullmatch(r"gpu-0-mig-1g5gb-19-\d", device["device"])
    assert [(each["type"], each["status"]) for each in device["conditions"]] == [("Ready", "True")]
    (instance,) = instances_of(api, kubelet.name, claim)
    assert instance["uuid"] in str(device["data"])


def test_a_container_with_two_claims_gets_what_they_have_in_common_once(
    api: Api, driver: Driver, kubelet: KubeletNode, workload: Workload
) -> None:
    claims = {
        "small": workload.template("small", device_class="mig-1g.5gb"),
        "large": workload.template("large", device_class="mig-2g.10gb"),
    }
    commands = {"main": ["sh", "-c", f"grep /usr/lib64/libcuda.so.1 /proc/self/mountinfo; {SHOW}"]}
    workload.create(pod("both", commands, claims=claims, **real_node(kubelet)))
    running = workload.wait_for_phase("both", "Running")

    held = [
        instance
        for claim in api.list("ResourceClaim")
        for instance in instances_of(api, kubelet.name, claim)
    ]
    assert len(held) == 2
    mount, first, *nodes = shown(kubelet, running, "main", least=6)
    assert " /usr/lib64/libcuda.so.1 ro," in mount
    assert first == "devices=void"
    assert set(nodes) == {n for each in held for n in cap_nodes(driver, kubelet.name, each)}
