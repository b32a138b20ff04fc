"""``kubectl mig map``: what is drawn, for people and as JSON."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from dra.common.resources import MIG_NODES, RESOURCE_CLAIMS, Obj
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Gpu, GpuLayout, Instance, NodeMode
from dra.gpu.layouts import place
from dra.gpu.mignode import to_mignode
from tests.cli.conftest import Mig
from tests.cli.site.golden import check
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance, inventory
from tests.dra.gpus import A100


def ref(world: World, name: str) -> ClaimRef:
    found = world.api.get(RESOURCE_CLAIMS, name, namespace="default")["metadata"]
    return ClaimRef("default", name, found["uid"])


@pytest.fixture
def busy(world: World) -> World:
    """One of everything that a map shows."""
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="trainer-0")
    world.hold("nb", "node-a", "gpu-0-mig-1g5gb-19-0", pod_name="notebook-with-a-long-name")
    world.hold("soon", "node-a", "gpu-1-mig-2g10gb-14-2")
    world.hold("old", "node-a", "gpu-1-mig-1g5gb-19-6")
    train, notebook = ref(world, "train"), ref(world, "nb")
    held = (
        _held(instance("1g.5gb", 0), notebook),
        instance("1g.5gb", 1, state="foreign"),
        _held(instance("3g.20gb", 4), train),
    )
    reclaiming = _held(
        instance("1g.5gb", 6, state="reclaiming"),
        ref(world, "old"),
        message="in use by process 4711",
    )
    world.add_node(
        "node-a",
        gpu(0, "node-a", instances=held),
        gpu(1, "node-a", instances=(reclaiming,)),
        gpu(
            2,
            "node-a",
            instances=(instance("2g.10gb", 0, state="foreign"),),
            unavailable="mig-manager is changing this node's GPUs",
            reason="MIGManagerActive",
        ),
    )
    world.add_node("node-b", gpu(0, "node-b"), gpu(1, "node-b", mig=False, reason="MIGDisabled"))
    return world


def _held(made: Instance, owner: ClaimRef, message: str = "") -> Instance:
    return structs.replace(made, claim=owner, message=message, uuid=f"MIG-{owner.name}")


def test_the_map_shows_owners_states_free_room_and_what_is_unavailable(
    busy: World, mig: Mig
) -> None:
    ran = mig("map")
    assert ran.code == 0
    check("busy", ran.out)


def test_wide_names_every_holder_in_full(busy: World, mig: Mig) -> None:
    check("busy-wide", mig("map", "node-a", "-o", "wide").out)


def test_a_gpu_that_is_held_whole_names_its_holder(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a", mig=False, reason="MIGDisabled"))
    world.hold("all", "node-a", "gpu-0", pod_name="trainer")
    assert "held whole by default/trainer" in mig("map").out


@pytest.mark.parametrize("made", [True, False], ids=["lost", "never made"])
def test_slices_of_a_gpu_whose_mig_mode_went_do_not_hold_it_whole(
    world: World, mig: Mig, *, made: bool
) -> None:
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="trainer")
    lost = _held(instance("3g.20gb", 4, state="lost"), ref(world, "train"), "it is gone")
    slices = (lost,) if made else ()
    world.add_node("node-a", gpu(0, "node-a", mig=False, reason="MIGDisabled", instances=slices))
    drawn = mig("map").out
    profile, state = ("3g.20gb", "lost") if made else ("3g20gb", "allocated")
    assert f"MIG is off: {profile} of default/trainer is {state}" in drawn
    assert "whole" not in drawn
    assert ("gpu-0 3g.20gb at 4:4 of claim default/train: lost: it is gone" in drawn) is made
    (found,) = mig("map", "-o", "json").json["nodes"][0]["gpus"]
    assert [slot["state"] for slot in found["slots"]] == [state]
    assert "whole" not in mig("map", "-o", "wide").out


def test_a_shared_slice_is_drawn_once_and_names_its_sharers(world: World, mig: Mig) -> None:
    world.hold("one", "node-a", "gpu-0-mig-1g10gb-15-4-share", pod_name="trainer")
    world.hold("two", "node-a", "gpu-0-mig-1g10gb-15-4-share")
    world.hold("new", "node-a", "gpu-0-mig-1g10gb-15-4-share")
    world.hold("alone", "node-a", "gpu-0-mig-1g5gb-19-0")
    world.hold("apart", "node-a", "gpu-0-mig-1g5gb-19-1-share")
    slices = tuple(_held(instance("1g.10gb", 4), ref(world, name)) for name in ("one", "two"))
    world.add_node("node-a", gpu(0, "node-a", instances=slices, slice_shares=4))
    lines = mig("map").out.splitlines()
    drawn = " ".join(line for line in lines if "a share" not in line)
    assert (drawn.count("1g.10gb"), drawn.count("3 of 4")) == (1, 1)
    sharers = [line.split() for line in lines if "a share of 1g.10gb at 4:2" in line]
    assert [(line[0], *line[-2:]) for line in sharers] == [
        ("default/new", "2464", "MiB"),
        ("default/trainer", "2464", "MiB"),
        ("default/two", "2464", "MiB"),
    ]
    (found,) = mig("map", "-o", "json").json["nodes"][0]["gpus"]
    assert found["sliceSharing"] == {"shares": 4}
    assert found["freeMemoryMiB"] == 40960 * 4 // 8
    parts = [s.get("share", {}).get("memoryMiB") for s in found["slots"]]
    assert parts == [None, 1216, 2464, 2464, 2464]
    told = mig("explain", "resourceclaim/one").out
    assert "a share of 1g.10gb at 4:2 of gpu-0 on node-a" in told
    assert "beside default/new, default/two" in told


def share(world: World, name: str, device: str, pods: str = "", **config: Any) -> None:
    """An allocated claim with this configuration that pods of one letter may use."""
    body = world.hold(name, "node-a", device, **config)
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    world.set_status(RESOURCE_CLAIMS, body, {**body["status"], "reservedFor": users})


def test_devices_that_pods_share_have_strategy_and_limits(world: World, mig: Mig) -> None:
    limits = {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "8Gi"}
    turns: Obj = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}
    mps: Obj = {"strategy": "MPS", "mps": limits}
    share(world, "mps", "gpu-0-mig-3g20gb-9-4", "ab", kind="MigDeviceConfig", sharing=mps)
    share(world, "plain", "gpu-0-mig-2g10gb-14-0", "abcdef")
    share(world, "turns", "gpu-1", kind="GpuConfig", sharing=turns)
    share(world, "part", "gpu-2", "x", kind="GpuConfig", sharing={"strategy": "MPS"})
    world.hold("rest", "node-a", "gpu-2")
    world.hold("alone", "node-a", "gpu-0-mig-1g5gb-19-2")
    made = _held(instance("3g.20gb", 4), ref(world, "mps"))
    whole: dict[str, Any] = {"mig": False, "reason": "MIGDisabled"}
    world.add_node(
        "node-a",
        gpu(0, "node-a", instances=(made,)),
        gpu(1, "node-a", **whole),
        gpu(2, "node-a", **whole, shares=4),
    )
    lines = [line.strip() for line in mig("map").out.splitlines() if "default/" in line[:20]]
    each = "each process 50 % of the multiprocessors and 8192 MiB"
    assert [line for line in lines if "│" not in line] == [
        "default/a, b, c, d and 2 more  2g.10gb at 0:2  in turns, without limits",
        f"default/a, b  3g.20gb at 4:4  MPS, {each}",
        "default/turns  the whole GPU  TimeSlicing, Long turns",
        "default/x  10240 MiB  MPS, each process without limits of its own",
        "default/rest  10240 MiB",
    ]
    shown = mig("map", "-o", "json").json["nodes"][0]["gpus"]
    slots = {s["claim"]["name"]: s for gpu in shown for s in gpu["slots"]}
    assert slots["mps"]["sharing"] == {"strategy": "MPS", "mps": limits}
    assert (slots["mps"]["state"], slots["mps"]["pods"]) == ("prepared", ["a", "b"])
    assert slots["turns"]["sharing"] == turns
    assert "sharing" not in slots["alone"]
    world.lead()
    told = mig("explain", "claim", "mps").out
    assert f"MIG-mps, prepared, MPS, {each}, used by default/a, b" in told
    told = mig("explain", "claim", "part").out
    assert "a share of gpu-2 on node-a: allocated, 10240 MiB  MPS" in told
    assert "used by default/x, beside default/rest" in told


def test_slices_of_an_eighth_can_be_read_at_80_columns(
    world: World, mig: Mig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for start, end in enumerate("abcdefg"):
        world.hold(
            f"c{start}", "n", f"gpu-0-mig-1g10gb-19-{start}", pod_name=f"infer-6d9-{end * 5}"
        )
    profile = Profile(19, "1g.10gb", 1, 9856, 16, tuple(Placement(n, 1) for n in range(7)))
    largest = Profile(0, "7g.180gb", 7, 182000, 132, (Placement(0, 8),))
    geometry = Geometry((profile, largest))
    full = replace(gpu(0, "n"), geometry=geometry, memory_mib=81920)
    world.add_node("n", full, replace(full, minor=1, uuid="GPU-n-1"))
    lines = mig("map").out.splitlines()
    assert lines[2] == "gpu-0 │" + "1g.10gb│" * 7 + "       │ none"
    assert lines[3] == "      │" + "".join(f"inf…{e * 3}│" for e in "abcdefg") + "       │ 10Gi"
    assert lines[4] == "gpu-1 │" + "       ·" * 7 + "       │ 7g.180gb"
    assert max(map(len, lines)) == 80


def test_of_many_nodes_there_is_a_summary_and_a_line_for_each(world: World, mig: Mig) -> None:
    busy = {"unavailable": "mig-manager is at work", "reason": "MIGManagerActive"}
    for number in range(9):
        name = f"node-{number}"
        faults: Obj = busy if number in (3, 5) else {}
        world.add_node(name, gpu(0, name, **faults), gpu(1, name, **faults))
    lines = mig("map").out.splitlines()
    assert lines[0] == "9 nodes  18 x A100-SXM4-40GB   560Gi of 720Gi free"
    free = {line.split()[0]: line.split()[1:] for line in lines[2:9]}
    assert (free["1g.5gb"], free["1g.5gb+me"]) == (["98", "14", "7"], ["14", "14", "7"])
    table = lines.index(next(line for line in lines if line.split()[:1] == ["NODE"]))
    assert lines[table + 1].split() == ["node-0", "2", "80Gi", "7g.40gb"]
    assert lines[table + 4].split() == ["node-3", "2", "0Gi", "none", "2", "GPUs"]
    assert [line for line in lines if line.startswith("! ")] == [
        "! 4 GPUs on node-3, node-5: mig-manager is at work"
    ]
    assert not [line for line in lines if "│" in line]
    assert "│" in mig("map", "node-0").out
    assert mig("map", "-o", "wide").out.count("gpu-0 │") == 9


def test_json_has_every_slot_with_its_owner(busy: World, mig: Mig) -> None:
    shown = mig("map", "node-a", "-o", "json").json
    assert (shown["apiVersion"], shown["kind"]) == ("cli.mig.dra.dev/v1", "PlacementMap")
    first, second, third = shown["nodes"][0]["gpus"]
    assert first["slots"][2] | {"claim": None} == {
        "placement": {"start": 4, "size": 4},
        "profile": "3g.20gb",
        "state": "prepared",
        "claim": None,
        "pods": ["trainer-0"],
        "migUUID": "MIG-train",
        "message": "",
        "unhealthy": "",
    }
    assert [s["state"] for s in second["slots"]] == ["allocated", "reclaiming"]
    assert (first["largestPlaceable"], first["placeable"]["2g.10gb"]) == ("2g.10gb", 1)
    assert (third["reason"], third["largestPlaceable"]) == ("MIGManagerActive", "")


def test_a_node_that_is_not_there_is_not_found(busy: World, mig: Mig) -> None:
    ran = mig("map", "node-c")
    assert (ran.code, ran.out) == (4, "")
    assert "'node-c'; there are: node-a, node-b" in ran.err


def test_an_empty_cluster_says_where_to_look(world: World, mig: Mig) -> None:
    ran = mig("map")
    assert ran.code == 0
    assert "kubectl mig doctor" in ran.out


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_and_not_with_no_color(
    busy: World, mig: Mig, monkeypatch: pytest.MonkeyPatch, no_color: str, *, is_coloured: bool
) -> None:
    assert "\x1b[" not in mig("map").out
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    mig("map")
    assert ("\x1b[30;48;5;222m3g.20gb" in shown.getvalue()) is is_coloured
    assert ("\x1b[" in shown.getvalue()) is is_coloured


def declared(node: str) -> Gpu:
    slices = place(A100, (("2g.10gb", 1), ("3g.20gb", 1)))
    made = gpu(0, node, geometry=A100.only(slices))
    return replace(made, layout=GpuLayout("halves", tuple(o.placement for o in slices)))


def test_the_map_shows_ready_slices(world: World, mig: Mig) -> None:
    world.add_node("node-a", declared("node-a"))
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="trainer-0")
    drawn = [
        [part.strip() for part in line.split("│")]
        for line in mig("map").out.splitlines()
        if "│" in line
    ]
    assert [line[1:3] for line in drawn] == [
        ["3g.20gb allocated", "2g.10gb"],
        ["default/trainer-0", "ready"],
    ]
    wide = mig("map", "-o", "wide").out
    assert "2g.10gb" in wide
    assert " ready " in wide
    [shown] = mig("map", "-o", "json").json["nodes"][0]["gpus"]
    assert shown["layout"] == "halves"
    assert [s["placement"]["start"] for s in shown["ready"]] == [4]
    assert shown["placeable"]["2g.10gb"] == 1


def test_the_map_says_what_a_layout_waits_for(world: World, mig: Mig) -> None:
    world.add_node("node-a", declared("node-a"))
    mode = NodeMode("layout", "pending", "halves", "gpu-0 waits for claim a/b to go")
    found = replace(inventory("node-a", declared("node-a")), mode=mode)
    made = world.api.get(MIG_NODES, "node-a")
    world.set_status(MIG_NODES, made, to_mignode(found)["status"])
    out = mig("map").out
    assert "node-a: layout halves is pending: gpu-0 waits for claim a/b to go" in out


def test_a_silent_plugin_is_shown_at_its_node_and_in_a_list(world: World, mig: Mig) -> None:
    for number in range(10):
        world.add_node(f"node-{number}")
    world.fall_silent("node-3", minutes=1)
    assert "silent" not in mig("map", "node-3").out
    world.fall_silent("node-3", minutes=4)
    silent = mig("map", "node-3").out
    assert "SILENT" in silent
    assert "node-3: its plugin has been silent for 4m" in silent
    (line,) = [each for each in mig("map").out.splitlines() if each.startswith("  node-3 ")]
    assert line.endswith("silent")
    assert mig("map", "node-3", "-o", "json").json["nodes"][0]["silence"].endswith("for 4m")
