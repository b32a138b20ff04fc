"""Claims that are allocated only once their node has made the slices reserved for them."""

from __future__ import annotations

import pytest

from api.mignode import MOST_RESERVATIONS
from controller import times
from dra.common.resources import MIG_NODES, PODS, Obj
from dra.gpu.inventory import Answer, AnswerState, FailedClaim
from dra.gpu.mignode import reservations_of
from dra.gpu.names import parse_device
from dra.kube.errors import ConflictError, ForbiddenError
from dra.kube.timing import FIRST_SECONDS
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import DRIVER, claim, pod, request
from tests.controller.serve.cutfirst import (
    FAILED,
    MADE,
    REFUSED,
    TIME,
    add,
    answers,
    config,
    gates,
    gpus_of,
    reserved,
    says,
    site,
    waiting,
)
from tests.controller.world.worldchecks import check_held_once


@pytest.mark.parametrize("gated", [False, True])
def test_a_claim_is_allocated_once_its_slice_is_made(*, gated: bool) -> None:
    bench = waiting(gated=gated)
    [device] = reserved(bench)["c"].devices
    assert (device.request, device.gpu) == ("r", bench_gpu(bench, device.device))
    assert bench.devices("c") == []
    assert bench.finalizers("c") == []
    says(bench)
    assert bench.devices("c") == []
    answers(bench, MADE)
    assert bench.devices("c") == [device.device]
    assert gates(bench) == []
    assert reserved(bench), "it goes with the next write, or a little later"
    bench.run(seconds=times.RESERVED_LINGERS)
    assert reserved(bench) == {}


def bench_gpu(bench: Bench, device: str) -> str:
    found = bench.cluster.inventory("node-a")
    known = found.gpu(f"gpu-{parse_device(device).minor}") if found is not None else None
    assert known is not None
    return known.uuid


@pytest.mark.parametrize("bind_when", ["allocated", ""])
def test_without_the_wish_it_is_allocated_at_once(bind_when: str) -> None:
    bench = waiting(bind_when=bind_when)
    assert bench.devices("c")
    assert reserved(bench) == {}


def test_a_node_that_does_not_say_that_it_can_is_not_asked() -> None:
    bench = site(capable=False)
    add(bench, "c")
    assert bench.devices("c")
    assert reserved(bench) == {}


def test_what_is_reserved_is_taken_for_all_others() -> None:
    bench = site("node-a")
    for name in ("a", "b"):
        bench.claim(claim(name, request("r", "mig-7g.40gb"), config=[config("made")]))
        bench.pod(pod(f"pod-{name}", name))
    bench.run()
    assert {*reserved(bench)} == {"a", "b"}
    assert gpus_of(reserved(bench)["a"]) != gpus_of(reserved(bench)["b"])
    bench.serve("pod-late", "late")
    assert bench.devices("late") == []
    bench.delete_pod("pod-a")
    bench.run()
    assert {*reserved(bench)} == {"b"}
    assert bench.devices("late")


@pytest.mark.parametrize("goes", [False, True])
def test_a_claim_of_two_pods_is_reserved_once_and_for_either(*, goes: bool) -> None:
    bench = waiting()
    bench.pod(pod("pod-d", "c"))
    bench.run()
    assert len(reservations_of(bench.api.get(MIG_NODES, "node-a"))) == 1
    if goes:
        bench.remove_pod("pod-c")
        bench.run()
    assert len(reservations_of(bench.api.get(MIG_NODES, "node-a"))) == 1
    for number in range(14):  # one of them has no room
        bench.serve(f"p{number}", f"c{number}", request("r", "mig-1g.5gb"))
    answers(bench, MADE)
    assert bench.devices("c")
    check_held_once([(n, o) for (k, n), o in bench.api.objects.items() if k == "resourceclaims"])


def test_what_cannot_be_made_is_tried_on_another_gpu_at_once() -> None:
    bench = waiting()
    before = reserved(bench)["c"]
    answers(bench, FAILED)
    after = reserved(bench)["c"]
    assert gpus_of(before) | gpus_of(after) == {0, 1}
    assert before.id != after.id
    assert bench.devices("c") == []
    assert "SliceNotMade" in bench.recorder.reasons("c")
    answers(bench, MADE)
    assert bench.devices("c") == [after.devices[0].device]


def test_where_no_gpu_is_left_on_the_node_another_node_is_taken() -> None:
    bench = waiting("node-a", "node-b")
    tried = []
    for _ in range(3):
        [node] = [n for n in ("node-a", "node-b") if reserved(bench, n)]
        tried.append(node)
        answers(bench, FAILED, node=node)
    assert set(tried[:2]) == {tried[0]}
    assert tried[2] != tried[0]
    assert bench.devices("c") == []


def test_what_was_looked_at_too_late_is_reserved_again_in_the_same_place() -> None:
    bench = waiting()
    before = reserved(bench)["c"]
    answers(bench, AnswerState.EXPIRED)
    after = reserved(bench)["c"]
    assert (after.devices, after.id != before.id) == (before.devices, True)
    assert "SliceNotMade" not in bench.recorder.reasons("c")


def test_all_claims_of_a_pod_are_made_or_none_is_allocated() -> None:
    bench = site()
    add(bench, "x", "y")
    assert {*reserved(bench)} == {"x", "y"}
    answers(bench, MADE, "x")
    assert bench.devices("x") == []
    found = reserved(bench)
    states = [Answer(found["x"].id, MADE), Answer(found["y"].id, FAILED, "no")]
    says(bench, answers=states)
    after = reserved(bench)
    assert {*after} == {"x", "y"}
    assert {r.id for r in after.values()}.isdisjoint(r.id for r in found.values())
    assert bench.devices("x") == bench.devices("y") == []
    answers(bench, MADE, "x", "y")
    assert bench.devices("x")
    assert bench.devices("y")


def test_a_node_that_says_nothing_is_left_after_a_while() -> None:
    bench = waiting("node-a", "node-b")
    [first] = [n for n in ("node-a", "node-b") if reserved(bench, n)]
    before = reserved(bench, first)["c"].id
    bench.run(seconds=times.RESERVED_ANSWER - 0.1)
    assert reserved(bench, first)["c"].id == before
    bench.run(seconds=0.2)
    now = {r.id for n in ("node-a", "node-b") for r in reserved(bench, n).values()}
    assert len(now) == 1
    assert before not in now
    assert bench.devices("c") == []


def test_a_node_that_is_no_longer_ready_is_left_at_once() -> None:
    bench = waiting("node-a", "node-b")
    [first] = [n for n in ("node-a", "node-b") if reserved(bench, n)]
    [second] = {"node-a", "node-b"} - {first}
    says(bench, first, ready=False)
    assert (reserved(bench, first), {*reserved(bench, second)}) == ({}, {"c"})


def test_a_node_whose_mignode_is_gone_is_left_at_once() -> None:
    bench = waiting("node-a", "node-b")
    [first] = [n for n in ("node-a", "node-b") if reserved(bench, n)]
    [second] = {"node-a", "node-b"} - {first}
    says(bench, first)
    bench.cluster.remove_mignode(first)
    bench.run()
    assert {*reserved(bench, second)} == {"c"}


def test_what_somebody_else_takes_out_is_reserved_again() -> None:
    bench = waiting()
    says(bench)
    before = reserved(bench)
    del bench.api.objects[MIG_NODES.plural, "node-a"]["spec"]["reservations"]
    says(bench)
    assert reserved(bench) == before


def test_what_a_node_refuses_is_allocated_unless_its_gpus_failed_lately() -> None:
    bench = waiting()
    answers(bench, REFUSED)
    assert bench.devices("c")
    bench = waiting()
    answers(bench, FAILED)
    [left] = gpus_of(reserved(bench)["c"])
    answers(bench, REFUSED)
    assert bench.devices("c") == []
    assert bench.cluster.fleet.nodes["node-a"].gpus[left].blocked == ""


def test_after_a_failure_claims_without_the_wish_are_made_first_for_a_while() -> None:
    bench = site()
    add(bench, "c", bind_when="")
    says(bench, failed=[FailedClaim("default", "c", "uid-c", TIME.format(1), gpu="GPU-node-a-0")])
    add(bench, "n", bind_when="")
    assert bench.devices("n") == []
    answers(bench, MADE, "n")
    assert bench.devices("n")
    says(bench)
    bench.run(seconds=FIRST_SECONDS)
    bench.run(seconds=3600)
    add(bench, "later", bind_when="")
    assert bench.devices("later")


@pytest.mark.parametrize("gone", ["pod", "claim"])
def test_what_nobody_needs_any_more_is_given_back(gone: str) -> None:
    bench = waiting()
    if gone == "pod":
        bench.delete_pod("pod-c")
    else:
        bench.cluster.remove_claim(("default", "c"))
    bench.run()
    assert reserved(bench) == {}
    assert not bench.cluster.fleet.counts("uid-c")


def test_a_claim_that_somebody_else_allocates_is_given_back() -> None:
    bench = waiting("node-a", "node-b")
    device = next(iter(reserved(bench).values())).devices[0].device
    other = {"request": "slice", "driver": DRIVER, "pool": "node-b", "device": device}
    field = {"key": "metadata.name", "operator": "In", "values": ["node-b"]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    allocation = {"devices": {"results": [other]}, "nodeSelector": selector}
    bench.change_claim("c", allocation=allocation)
    bench.run()
    assert reserved(bench) == {}
    assert bench.cluster.fleet.claims_on("node-a") == frozenset()
    assert bench.cluster.fleet.claims_on("node-b") == {"uid-c"}


def test_many_are_written_at_once_and_no_more_than_a_node_may_have() -> None:
    bench = site()
    for number in range(14):
        bench.claim(claim(f"c{number}", config=[config("made")]))
        bench.pod(pod(f"pod-{number}", f"c{number}"))
    bench.api.writes.clear()
    bench.run()
    assert len(reserved(bench)) == 14 <= MOST_RESERVATIONS
    assert bench.api.writes.count("mignodes") == 1


def test_a_write_that_somebody_was_faster_than_is_made_again_on_what_there_is() -> None:
    bench = site()
    bench.api.refuse = once("mignodes", ConflictError("changed", status=422))
    add(bench, "c")
    bench.run(seconds=1)
    assert {*reserved(bench)} == {"c"}


def test_without_the_right_to_reserve_claims_are_allocated_as_ever() -> None:
    bench = site()
    bench.api.refuse = once("mignodes", ForbiddenError("no", status=403))
    add(bench, "c")
    bench.run(seconds=times.RESERVED_ANSWER)
    assert bench.devices("c")
    add(bench, "n")
    assert bench.devices("n")


def succeeded(bench: Bench) -> Bench:
    new = bench.succeeded_by("node-a")
    new.cluster.set_mignode(bench.api.get(MIG_NODES, "node-a"))
    return new


def test_the_next_leader_goes_on_with_what_is_reserved() -> None:
    bench = waiting()
    before = reserved(bench)["c"]
    new = succeeded(bench)
    new.run()
    assert reserved(new)["c"] == before
    assert new.cluster.fleet.counts("uid-c")
    answers(new, MADE)
    assert new.devices("c") == [before.devices[0].device]
    new.run(seconds=times.RESERVED_LINGERS)
    assert reserved(new) == {}


def test_the_next_leader_gives_back_what_nobody_waits_for() -> None:
    bench = waiting()
    del bench.api.objects[PODS.plural, "pod-c"]
    new = succeeded(bench)
    new.run()
    assert reserved(new)
    new.run(seconds=times.RESERVED_BY_OTHERS)
    assert reserved(new) == {}


def test_a_late_write_of_a_former_leader_fails_or_is_seen() -> None:
    bench = waiting()
    new = succeeded(bench)
    new.run()
    held = bench.api.get(MIG_NODES, "node-a")["spec"]["reservations"]
    late = [{**held[0], "id": "late", "claim": {**held[0]["claim"], "uid": "uid-other"}}]
    bench.leads = True  # it was sent before its time was up
    with pytest.raises(ConflictError):
        bench.requests.reserve("node-a", [], late)
    bench.requests.reserve("node-a", held, [*held, *late])
    says(new)
    add(new, "n")
    assert {"late", held[0]["id"]} < {r["id"] for r in raw(new)}
    new.run(seconds=times.RESERVED_BY_OTHERS)
    assert "late" not in {r["id"] for r in raw(new)}


def raw(bench: Bench) -> list[Obj]:
    found: list[Obj] = bench.api.get(MIG_NODES, "node-a")["spec"]["reservations"]
    return found
