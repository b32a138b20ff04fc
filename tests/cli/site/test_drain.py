"""``kubectl mig drain`` and ``resume``."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cli.commands import drain
from dra.claims.remedies import remedy
from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIMS
from dra.kube.errors import ObjectNotFoundError
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance


@pytest.fixture
def node(world: World) -> World:
    """Two GPUs; on each a claim, that of the second with a running pod."""
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    world.hold("idle", "node-a", "gpu-0-mig-1g5gb-19-0")
    world.hold("busy", "node-a", "gpu-1-mig-3g20gb-9-4", pod_name="trainer")
    return world


def drain_of(world: World) -> Any:
    return world.api.get(MIG_NODES, "node-a")["spec"].get("drain")


def test_single_gpus_add_up_and_are_resumed_one_by_one(node: World, mig: Mig) -> None:
    assert mig("drain", "node-a", "gpu-1").out.startswith("node-a  drained: gpu-1\n")
    assert mig("drain", "node-a", "gpu-0").out.startswith("node-a  drained: gpu-0, gpu-1\n")
    assert drain_of(node)["gpus"] == ["gpu-0", "gpu-1"]
    assert mig("resume", "node-a", "gpu-0").out.endswith("; still drained: gpu-1\n")
    assert drain_of(node)["gpus"] == ["gpu-1"]
    assert mig("resume", "node-a").code == 0
    assert drain_of(node) is None


def test_one_gpu_of_a_drained_node_is_resumed_alone(node: World, mig: Mig) -> None:
    mig("drain", "node-a")
    mig("resume", "node-a", "gpu-0")
    assert drain_of(node)["gpus"] == ["gpu-1"]


def test_evict_ends_the_pods_that_use_it_and_no_others(node: World, mig: Mig) -> None:
    node.add_pod("bystander", nodeName="node-a")
    ran = mig("drain", "node-a", "gpu-1", "--evict")
    assert [line for line in ran.out.splitlines() if "evicted" in line] == [
        "  pod default/trainer evicted"
    ]
    left = {p["metadata"]["name"] for p in node.api.list(PODS).items if not _going(p)}
    assert left == {"bystander"}


def test_a_pod_that_has_the_name_of_one_that_used_it_is_not_evicted(node: World, mig: Mig) -> None:
    node.api.delete(PODS, "trainer", namespace="default", grace_seconds=0)
    node.add_pod("trainer", nodeName="node-b")
    assert "evicted" not in mig("drain", "node-a", "gpu-1", "--evict").out
    assert not any(map(_going, node.api.list(PODS).items))


@pytest.mark.parametrize(
    "line",
    [
        ["--context", "{context}", "drain", "node-a", "gpu-0"],
        ["--no-color", "-o", "text", "drain", "node-a", "gpu-0"],
        ["--kubeconfig={path}", "--request-timeout", "9", "drain", "node-a", "gpu-0"],
        ["-o=text", "drain", "--reason", "x", "node-a", "gpu-0"],
    ],
    ids=" ".join,
)
def test_options_are_taken_before_the_command_too(node: World, mig: Mig, line: list[str]) -> None:
    path = node.kubeconfig
    context = yaml.safe_load(path.read_text())["current-context"]
    ran = mig(*(word.format(path=path, context=context) for word in line))
    assert (ran.code, ran.err) == (1, "")
    assert drain_of(node)["gpus"] == ["gpu-0"]


def _going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def test_wait_ends_when_nobody_uses_it_any_more(
    node: World, mig: Mig, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ["delete", "release"]

    def sleep(_: float) -> None:
        if steps.pop(0) == "delete":
            node.api.delete(RESOURCE_CLAIMS, "idle", namespace="default")
        else:
            release(node, "gpu-0")

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(drain, "time", clock)
    ran = mig("drain", "node-a", "gpu-0", "--wait")
    assert ran.code == 0
    assert "nothing of this driver is in use there" in ran.out
    assert not steps, "it looked again until the plugin had released the GPU"


def test_an_interrupted_wait_is_130(node: World, mig: Mig, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=interrupt)
    monkeypatch.setattr(drain, "time", clock)
    assert mig("drain", "node-a", "--wait").code == 130
    assert drain_of(node)["since"], "what was begun stays"


def release(world: World, name: str) -> None:
    """What the node's plugin says of a GPU that may be reset."""
    found = world.api.get(MIG_NODES, "node-a")
    for each in found["status"]["gpus"]:
        if each["name"] == name:
            each.update(reason="GpuReleased", message="released: it may be reset")
    world.api.replace(MIG_NODES, found, subresource="status")


def test_it_says_whether_the_plugin_has_released_it(node: World, mig: Mig) -> None:
    node.api.delete(RESOURCE_CLAIMS, "idle", namespace="default")
    ran = mig("drain", "node-a", "gpu-0")
    assert ran.code == 0
    assert "has not released gpu-0 yet; --wait waits" in ran.out
    release(node, "gpu-0")
    assert mig("drain", "node-a", "gpu-0", "--wait").out.endswith(
        "the node's plugin has released them:\n  gpu-0  released: it may be reset\n"
    )


def test_a_foreign_instance_is_told_but_not_waited_for(world: World, mig: Mig) -> None:
    made = instance("1g.5gb", 0, state="foreign")
    world.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    ran = mig("drain", "node-a")
    assert ran.code == 0
    assert "foreign, left alone" in ran.out


def test_a_place_that_the_gpu_keeps_is_not_waited_for_as_a_reset_ends_it(
    world: World, mig: Mig
) -> None:
    kept = instance("1g.5gb", 0, state="reclaiming")
    world.add_node("node-a", gpu(0, "node-a", instances=(kept,)))
    assert mig("drain", "node-a").code == 0


def test_what_is_not_there_is_not_drained(node: World, mig: Mig) -> None:
    assert mig("drain", "node-x").code == 4
    ran = mig("drain", "node-a", "gpu-7")
    assert ran.code == 4
    assert "its GPUs are: gpu-0, gpu-1" in ran.err
    assert mig("resume", "node-a", "gpu-7").code == 4
    assert drain_of(node) is None
    with pytest.raises(ObjectNotFoundError):
        node.api.get(MIG_NODES, "node-x")


def test_a_pod_that_waits_for_a_drained_node_is_told_so(node: World, mig: Mig) -> None:
    node.add_classes("1g.5gb")
    node.lead()
    mig("drain", "node-a", "--reason", "driver 580")
    node.add_claim("wanted")
    node.add_pod("waiting", "wanted")
    found = mig("explain", "waiting", "-o", "json").json
    assert found["reason"] == "Drained"
    assert "driver 580" in found["findings"][0]["message"]


def test_resume_says_what_it_did(node: World, mig: Mig) -> None:
    mig("drain", "node-a", "gpu-0", "gpu-1")
    assert mig("resume", "node-a", "gpu-0").out == (
        "node-a  back in service: gpu-0; still drained: gpu-1\n"
    )
    assert mig("resume", "node-a", "gpu-0").out == (
        "node-a  gpu-0 was not drained; still drained: gpu-1\n"
    )
    assert mig("resume", "node-a").out == "node-a  back in service: gpu-1\n"
    assert mig("resume", "node-a").out == "node-a  nothing to do: no GPU of it was drained\n"


def test_when_its_time_is_over_it_says_so_and_what_is_wrong(node: World, mig: Mig) -> None:
    lost = gpu(1, "node-a", unavailable="it fell off the bus", reason="GpuLost")
    node.replace_gpus("node-a", gpu(0, "node-a"), lost)
    ran = mig("drain", "node-a", "--wait", "--evict", "--timeout", "0")
    assert ran.code == 1
    assert "2 still in use after 0 s\n" in ran.out, "it advises nothing that was asked for"
    assert "! gpu-1  it fell off the bus; reset the GPU (kubectl mig drain node-a gpu-1" in ran.out
    known = remedy("GpuLost", node="node-a", gpu="gpu-1", uuid="GPU-node-a-1")
    told = gpu(1, "node-a", unavailable=f"it is lost; {known}", reason="GpuLost")
    node.replace_gpus("node-a", gpu(0, "node-a"), told)
    for command in (("drain", "node-a"), ("doctor",)):
        shown = " ".join(mig(*command).out.split())
        assert shown.count("kubectl mig resume node-a gpu-1) or reboot") == 1
    node.api.delete(RESOURCE_CLAIMS, "idle", namespace="default")
    ran = mig("drain", "node-a", "gpu-0", "--wait", "--timeout", "0")
    assert ran.code == 1, "whoever resets the GPU next must know that it is still held"
    assert ran.out.endswith("the node's plugin has not released gpu-0 after 0 s\n")


def test_a_lost_gpu_that_was_released_can_be_reset_whatever_its_slices_say(
    node: World, mig: Mig
) -> None:
    gone = instance("1g.5gb", 0, uid="gone", state="reclaiming")
    lost = gpu(0, "node-a", instances=(gone,), reason="GpuReleased", unavailable="it may be reset")
    node.api.delete(RESOURCE_CLAIMS, "idle", namespace="default")
    node.replace_gpus("node-a", lost, gpu(1, "node-a"))
    ran = mig("drain", "node-a", "gpu-0", "--wait")
    assert ran.code == 0
    assert ran.out.endswith("released them:\n  gpu-0  it may be reset\n")
