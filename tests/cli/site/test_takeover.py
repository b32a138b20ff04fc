"""Takeover and handback: their words, and the order of their writes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from dra.common.resources import MIG_NODES, NODES, RESOURCE_CLAIMS, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import allocated, gpu, instance, request

LABELS = {
    "nvidia.com/gpu.deploy.device-plugin": "true",
    "nvidia.com/gpu.deploy.mig-manager": "true",
    "nvidia.com/gpu.deploy.dra-driver": "false",
    "nvidia.com/gpu.deploy.dcgm": "true",
}
RESOURCE = "nvidia.com/mig-1g.5gb"
HELD = f"pod ml/train ({RESOURCE})"
PLUGIN, MANAGER = [*LABELS][:2]


@pytest.fixture
def node(world: World) -> World:
    """A node of the GPU operator, with a slice that a pod has and one that none has."""
    held = structs.replace(instance("1g.5gb", 0, state="foreign"), message=HELD)
    free = instance("3g.20gb", 4, state="foreign")
    given = f"a device plugin gives out this node's GPUs too ({RESOURCE}: 1)"
    gpus = (gpu(0, "node-a", instances=(held, free)), gpu(1, "node-a", mig=False))
    world.add_node("node-a", *(replace(g, unavailable=given) for g in gpus), labels=LABELS)
    return world


def labels(world: World) -> dict[str, str]:
    found = world.api.get(NODES, "node-a")["metadata"]["labels"]
    return {key: found[key] for key in LABELS}


def wish(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.api.get(MIG_NODES, "node-a")["spec"].get("takeover") or {}
    return found


def answer(world: World, state: str, message: str = "") -> None:
    """Write the progress of the wish, as the node's plugin does."""
    found = world.api.get(MIG_NODES, "node-a")
    told = {"since": wish(world)["since"], "state": state, "message": message}
    world.set_status(MIG_NODES, found, {**found["status"], "takeover": told})


def test_without_execute_it_says_what_becomes_of_each_gpu_and_pod(node: World, mig: Mig) -> None:
    ran = mig("takeover", "node-a")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "node-a  take: --execute does this",
        f"  driver 570.86.10; a device plugin gives out this node's GPUs too ({RESOURCE}: 1)",
        f"  label {PLUGIN} becomes false",
        f"  label {MANAGER} becomes false",
        "  gpu-1  MIG is off: offered while no pod of others has it whole",
        f"  gpu-0  1g.5gb at 0:1: stays until that ends: {HELD}",
        "  gpu-0  3g.20gb at 4:4: nobody has it: removed",
    ]
    assert (labels(node), wish(node)) == (LABELS, {})
    assert "neither taken over" in mig("takeover", "node-a", "--status").out


def test_there_and_back(node: World, mig: Mig) -> None:
    assert mig("takeover", "node-a", "--execute").code == 0
    first = wish(node)
    assert labels(node) == {**LABELS, PLUGIN: "false", MANAGER: "false"}
    assert first["labels"] == [{"key": k, "value": "true"} for k in (PLUGIN, MANAGER)]
    assert [i["placement"]["start"] for i in first["instances"]] == [0, 4]
    assert "becomes" not in mig("takeover", "node-a", "--execute").out
    assert wish(node) == first, "what was remembered first counts"
    ran = mig("takeover", "node-a", "--status")
    assert (ran.code, ran.out) == (1, "node-a  take is pending: its plugin has not answered yet\n")
    answer(node, "pending", "1 left: gpu-0 1g.5gb at 0:1: pod ml/train")
    assert "take is pending: 1 left: gpu-0" in mig("takeover", "node-a", "--status").out
    assert "! its takeover (take) is pending" in re.sub("node-a: ", "", mig("map").out)
    answer(node, "success")
    assert mig("takeover", "node-a", "--status").code == 0

    node.hold("c", "node-a", "gpu-0-mig-1g5gb-19-2", pod_name="own")
    told = mig("handback", "node-a", "--restore").out
    assert f"the same command puts back {PLUGIN}=true, {MANAGER}=true; before that 2 inst" in told
    assert "gpu-0  1g.5gb at 2:1: stays until that ends: default/own" in told
    assert "nobody has it" not in told
    assert wish(node)["wish"] == "take"
    assert mig("handback", "node-a", "--execute", "--restore").code == 0
    back = wish(node)
    assert (back["wish"], back["restore"]) == ("return", True)
    assert back["since"]
    assert back["instances"] == first["instances"]
    assert labels(node)[PLUGIN] == "false", "not before nothing is left"
    answer(node, "pending", "1 left: claim default/c")
    assert mig("handback", "node-a", "--execute").code == 0
    assert wish(node) == back
    answer(node, "success")
    assert mig("handback", "node-a", "--execute").code == 0
    assert labels(node) == LABELS
    assert mig("handback", "node-a", "--execute").code == 0
    assert (labels(node), wish(node)) == (LABELS, back), "it stays handed back"
    node.replace_gpus("node-a", gpu(0, "node-a"))
    answer(node, "success")
    assert mig("takeover", "node-a", "--execute").code == 0
    assert labels(node)[PLUGIN] == "false"
    now = wish(node)
    assert (now["labels"], now["instances"], now["restore"]) == (first["labels"], [], False)


def test_a_takeover_after_half_a_handback_remembers_what_was_there_first(
    node: World, mig: Mig
) -> None:
    mig("takeover", "node-a", "--execute")
    first = wish(node)
    mig("handback", "node-a", "--execute")
    node.replace_gpus("node-a", gpu(0, "node-a"))
    mig("takeover", "node-a", "--execute")
    assert {**wish(node), "since": ""} == {**first, "since": ""}


def test_what_cannot_be_made_again_can_be_left_out(node: World, mig: Mig) -> None:
    mig("takeover", "node-a", "--execute")
    mig("handback", "node-a", "--execute", "--restore")
    first = wish(node)
    answer(node, "pending", "not made again: gpu-0 1g.5gb at 0:1")
    mig("handback", "node-a", "--execute", "--no-restore")
    now = wish(node)
    assert now.pop("since") != first.pop("since")
    assert {"restore": False, **now} == {**first, "restore": False}


def test_a_takeover_that_is_done_can_be_asked_for_again(node: World, mig: Mig) -> None:
    mig("takeover", "node-a", "--execute")
    first = wish(node)
    answer(node, "success")
    mig("takeover", "node-a", "--execute")
    assert wish(node)["since"] != first["since"]
    assert {**wish(node), "since": ""} == {**first, "since": ""}


@pytest.mark.parametrize(
    ("command", "cut"), [("takeover", MIG_NODES), ("takeover", NODES), ("handback", NODES)]
)
def test_a_run_that_was_cut_short_is_repeated(
    node: World, mig: Mig, monkeypatch: pytest.MonkeyPatch, command: str, cut: Resource
) -> None:
    if command == "handback":
        for each in (["takeover", "node-a"], ["handback", "node-a"]):
            mig(*each, "--execute")
        answer(node, "success")
    patch = KubeApi.patch

    def refused(self: KubeApi, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource == cut:
            raise ConflictError("somebody was quicker")
        return patch(self, resource, *args, **kwargs)

    with monkeypatch.context() as context:
        context.setattr(KubeApi, "patch", refused)
        assert mig(command, "node-a", "--execute").code == 1
    remembered = {each["key"] for each in wish(node).get("labels", ())}
    changed = {key for key in LABELS if labels(node)[key] != LABELS[key]}
    assert changed <= remembered, "no label is changed that is not remembered"
    assert mig(command, "node-a", "--execute").code == 0
    assert labels(node)[PLUGIN] == ("false" if command == "takeover" else "true")


def test_labels_that_have_just_changed_are_not_overwritten(
    node: World, mig: Mig, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, paused = KubeApi.patch, {PLUGIN: "paused-for-driver-upgrade"}

    def after_another(self: KubeApi, resource: Resource, *args: Any, **kwargs: Any) -> Any:
        if resource == NODES:
            patch(node.api, NODES, "node-a", {"metadata": {"labels": paused}})
        return patch(self, resource, *args, **kwargs)

    monkeypatch.setattr(KubeApi, "patch", after_another)
    ran = mig("takeover", "node-a", "--execute")
    assert (ran.code, "the object has been modified" in ran.err) == (1, True)
    assert labels(node) == LABELS | paused


def test_it_does_not_begin_while_the_operator_works_or_claims_of_nvidias_driver_are_there(
    node: World, mig: Mig
) -> None:
    paused = {PLUGIN: "paused-for-driver-upgrade"}
    node.api.patch(NODES, "node-a", {"metadata": {"labels": paused}})
    body = node.add_claim("theirs", request("r", "gpu.nvidia.com"))
    status = allocated(body, "node-a", "gpu-0-mig-1g5gb-19-0")["status"]
    status["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    node.set_status(RESOURCE_CLAIMS, body, status)
    ran = mig("takeover", "node-a", "--execute")
    assert ran.code == 1
    assert "paused-for-driver-upgrade: the GPU operator is at work" in ran.err
    assert "claim default/theirs" in ran.err
    assert wish(node) == {}
    assert labels(node) == LABELS | paused
