"""``kubectl mig plan``: room for slices, the moves that make it, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from dra.common.resources import PODS, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from tests.cli.conftest import Mig
from tests.cli.world import World
from tests.controller.helpers.objects import gpu, instance


def holds(world: World, name: str, device: str, *, owner: str = "ReplicaSet") -> None:
    """A running pod with a slice, which somebody makes anew if it ends."""
    world.hold(f"c-{name}", "node-a", device, pod_name=name)
    if owner:
        reference = {"apiVersion": "kept.example/v1", "kind": owner, "name": "o", "uid": "o"}
        body = {"metadata": {"ownerReferences": [{**reference, "controller": True}]}}
        world.api.patch(PODS, name, body, namespace="default")


def with_gpus(world: World, number: int) -> None:
    world.add_node("node-a", *(gpu(minor, "node-a") for minor in range(number)))
    world.add_classes(*(p.name for p in (gpu().geometry or ()).profiles))  # type: ignore[union-attr]


def test_room_is_shown_where_the_controller_would_give_it(world: World, mig: Mig) -> None:
    with_gpus(world, 1)
    ran = mig("plan", "--profile", "3g.20gb")
    assert (
        ran.out
        == """\
room for 1 slice of 3g.20gb
  3g.20gb at node-a gpu-0 4:4

  room for 1g.5gb: 7 -> 4
  room for 1g.10gb: 4 -> 2
  room for 2g.10gb: 3 -> 2
  room for 3g.20gb: 2 -> 1
  room for 7g.40gb: 1 -> 0
  cost: 2.86 memory slices that others are likely to lack, by the default policy
"""
    )
    assert ran.code == 0


def test_the_pods_to_move_are_named_with_their_places(world: World, mig: Mig) -> None:
    with_gpus(world, 2)
    holds(world, "a", "gpu-0-mig-1g5gb-19-1")
    holds(world, "b", "gpu-1-mig-1g5gb-19-1")
    holds(world, "c", "gpu-1-mig-1g5gb-19-4")
    ran = mig("plan", "--profile", "7g.40gb")
    assert ran.code == 1
    assert ran.out.splitlines()[:3] == [
        "room after moves for 1 slice of 7g.40gb",
        "  1. pod default/a ends, and its 1g.5gb goes node-a gpu-0 1:1 -> node-a gpu-1 0:1",
        "  7g.40gb at node-a gpu-0 0:8",
    ]


def test_slices_that_are_prepared_go_with_their_pods(world: World, mig: Mig) -> None:
    with_gpus(world, 2)
    gpus = []
    for minor, name in ((1, "b"), (0, "a")):  # the youngest moves, also if made in one second
        holds(world, name, f"gpu-{minor}-mig-1g5gb-19-1")
        held = world.api.get(RESOURCE_CLAIMS, f"c-{name}", namespace="default")["metadata"]
        made = instance("1g.5gb", 1)
        ref = ClaimRef("default", held["name"], held["uid"])
        gpus.append(gpu(minor, "node-a", instances=(structs.replace(made, claim=ref),)))
    world.replace_gpus("node-a", *reversed(gpus))
    ran = mig("plan", "--profile", "7g.40gb")
    assert "  7g.40gb at node-a gpu-0 0:8" in ran.out
    assert "room for 1g.5gb: 12 -> 5" in ran.out


def test_a_pod_that_nobody_makes_anew_is_not_moved(world: World, mig: Mig) -> None:
    with_gpus(world, 2)
    holds(world, "a", "gpu-0-mig-1g5gb-19-1", owner="")
    holds(world, "b", "gpu-1-mig-1g5gb-19-1", owner="DaemonSet")
    ran = mig("plan", "--profile", "7g.40gb")
    assert (ran.code, ran.out.splitlines()[0]) == (
        1,
        "no room for 1 slice of 7g.40gb; room for 0 now",
    )


def test_several_slices_need_room_together(world: World, mig: Mig) -> None:
    with_gpus(world, 1)
    assert mig("plan", "-p", "3g.20gb", "--number", "2").code == 0
    assert "room for 2 now" in mig("plan", "-p", "3g.20gb", "--number", "3").out


def test_a_profile_that_nobody_has_is_refused_with_the_nearest(world: World, mig: Mig) -> None:
    with_gpus(world, 1)
    ran = mig("plan", "-p", "3g.21gb")
    assert ran.code == 4
    assert "did you mean 'mig-3g.20gb'?" in ran.err


def test_a_class_is_taken_for_the_smallest_profile_that_it_gives(world: World, mig: Mig) -> None:
    with_gpus(world, 1)
    ran = mig("plan", "-p", "mig-min-10gb")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "room for 1 slice of 1g.10gb")
    assert ran.out == mig("plan", "-p", "1g.10gb").out
    assert mig("plan", "-p", "mig-1g.10gb").out == mig("plan", "-p", "1g.10gb").out


# -- ``kubectl mig profiles``: what can be cut, in the words of nvidia-smi


def test_placements_and_what_is_free_can_be_read(world: World, mig: Mig) -> None:
    world.add_node("node-a", gpu(0, "node-a"), gpu(1, "node-a"))
    world.hold("train", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="trainer-0")
    rows = {line.split()[0]: line for line in mig("profiles").out.splitlines() if "mig-" in line}
    assert rows["1g.5gb"].split()[-6:] == ["{0,1,2,3,4,5,6}:1", "0", "11", "on", "2", "GPUs"]
    assert rows["1g.5gb+me"].endswith("2 on 2 GPUs"), "one a GPU, at whichever placement"
    assert rows["7g.40gb"].split()[-6:] == ["{0}:8", "0", "1", "on", "1", "GPU"]


def test_profiles_of_gpus_out_of_mig_mode_are_listed_without_room(world: World, mig: Mig) -> None:
    world.add_node("node-a", replace(gpu(0, "node-a"), mig_enabled=False))
    rows = {line.split()[0]: line for line in mig("profiles").out.splitlines() if "mig-" in line}
    assert rows["7g.40gb"].split()[-2:] == ["0", "none"]
