"""``kubectl mig defrag``: the plan for a pod that waits, and the request to carry it out."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from api.mignode import RoomRequest
from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIMS, Obj
from dra.gangs.membership import COUNT_LABEL, NAME_LABEL
from tests.cli.conftest import Mig
from tests.cli.site.test_plan import holds, with_gpus
from tests.cli.world import World
from tests.controller.helpers.objects import DRIVER, allocated, request
from tests.helpers.waiting import wait_for

KEY = f"{DRIVER}/defrag"


def lets_move(world: World, name: str) -> None:
    body = {"metadata": {"labels": {f"{DRIVER}/movable": "true"}}}
    world.api.patch(PODS, name, body, namespace="default")


def crowded(world: World, *, waits: bool = True) -> None:
    """Two GPUs with a slice each in the way of a whole one, for which somebody waits."""
    with_gpus(world, 2)
    holds(world, "a", "gpu-0-mig-1g5gb-19-1")
    holds(world, "b", "gpu-1-mig-1g5gb-19-1")
    if waits:
        world.add_claim("c-big", request("r", "mig-7g.40gb"))
        world.add_pod("big", "c-big")


def annotation(world: World) -> str:
    metadata = world.api.get(MIG_NODES, "node-a")["metadata"]
    return str((metadata.get("annotations") or {}).get(KEY, ""))


def test_who_would_have_to_allow_it_is_named(world: World, mig: Mig) -> None:
    crowded(world)
    holds(world, "c", "gpu-1-mig-1g5gb-19-4")
    ran = mig("defrag", "-p", "7g.40gb")
    assert "not allowed: default/a would need label mig.dra.dev/movable=true" in ran.out
    assert ran.out.startswith("for pod default/big, which waits first")
    ran = mig("defrag", "-p", "7g.40gb", "--execute")
    assert ran.code == 1
    assert "nothing was done: some pods may not be moved" in ran.err
    assert annotation(world) == ""


@pytest.mark.parametrize(
    "requests",
    [
        [request("r", DRIVER)],
        [request("r", "mig-7g.40gb", count=2)],
        [request("r", "mig-7g.40gb"), request("s", "mig-1g.5gb")],
        [],
    ],
    ids=["a whole GPU", "several slices", "two requests", "a gang"],
)
def test_nobody_is_moved_for_who_asks_for_more_than_a_slice(
    world: World, mig: Mig, requests: list[Obj]
) -> None:
    crowded(world, waits=False)
    lets_move(world, "a")
    for name in ("g1", "g2"):
        world.add_claim(f"c-{name}", *(requests or [request("r", "mig-7g.40gb")]))
        world.add_pod(name, f"c-{name}")
        if not requests:
            labels = {"metadata": {"labels": {NAME_LABEL: "g", COUNT_LABEL: "2"}}}
            world.api.patch(PODS, name, labels, namespace="default")
    ran = mig("defrag", "-p", "7g.40gb", "--execute", "--pod", "g1", "--timeout", "1")
    assert ran.code == 4
    assert "pod default/g1 does not wait by itself for one slice of 7g.40gb" in ran.err
    assert "pods are not moved for gangs, whole GPUs or claims of several slices" in ran.err
    head = mig("defrag", "-p", "7g.40gb").out.splitlines()[0]
    assert head.startswith("no pod waits by itself for one slice of 7g.40gb")
    world.add_claim("c-big", request("r", "mig-7g.40gb"))
    world.add_pod("big", "c-big")
    head = mig("defrag", "-p", "7g.40gb").out.splitlines()[0]
    assert head.startswith("for pod default/big, which waits first")


def in_the_place_of_the_controller(world: World, act: Callable[[RoomRequest], None]) -> None:
    """Once the request is there ``act`` answers it."""

    def answer() -> None:
        wait_for("request", lambda: annotation(world))
        asked = RoomRequest.read(annotation(world))
        assert asked is not None
        act(asked)

    threading.Thread(target=answer, daemon=True).start()


def test_the_request_names_the_pod_and_goes_when_it_is_served(world: World, mig: Mig) -> None:
    crowded(world)
    lets_move(world, "b")
    big = world.api.get(PODS, "big", namespace="default")
    world.tell(big, "MakingRoom", "told before")
    seen: list[RoomRequest] = []

    def serve(asked: RoomRequest) -> None:
        seen.append(asked)
        world.tell(big, "MakingRoom", "pod default/b is moved for it")
        body = world.api.get(RESOURCE_CLAIMS, "c-big", namespace="default")
        status = allocated(body, "node-a", "gpu-1-mig-7g40gb-0-0")["status"]
        world.set_status(RESOURCE_CLAIMS, body, status)

    in_the_place_of_the_controller(world, serve)
    ran = mig("defrag", "-p", "7g.40gb", "--execute")
    assert (seen[0].uid, seen[0].moves) == (big["metadata"]["uid"], 1)
    assert ran.out.splitlines()[-1] == "pod default/big has gpu-1-mig-7g40gb-0-0 on node node-a"
    assert "told before" not in ran.out
    assert ran.code == 0
    assert annotation(world) == ""


def test_a_surprise_ends_it_with_its_words(world: World, mig: Mig) -> None:
    crowded(world)
    lets_move(world, "b")
    big = world.api.get(PODS, "big", namespace="default")
    in_the_place_of_the_controller(world, lambda _: world.tell(big, "RoomNotMade", "a budget"))
    ran = mig("defrag", "-p", "7g.40gb", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "stopped: a budget")
    assert annotation(world) == ""


def test_nobody_waits_for_ever_for_a_controller_that_does_nothing(world: World, mig: Mig) -> None:
    crowded(world)
    lets_move(world, "b")
    ran = mig("defrag", "-p", "7g.40gb", "--execute", "--timeout", "1")
    assert ran.code == 1
    assert "the controller has done nothing (kubectl mig doctor; --timeout)" in ran.out
    assert annotation(world) == ""
