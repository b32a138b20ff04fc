"""Gangs are overtaken so often, and no longer: room for all of their pods is held back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller import times
from controller.queue import line
from controller.queue.line import OVERTAKEN
from dra.gangs.decision import GangDecision
from dra.gangs.membership import NAME_LABEL
from dra.kube.errors import ConflictError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import at_desk, settle
from tests.controller.helpers.objects import claim, node, pod, request
from tests.controller.queue.test_held_back import for_ever
from tests.controller.queue.test_overtaking import Stream
from tests.controller.serve.gangs.gangpods import create, delete, held, refuse

LIFE = 6
BOUND = OVERTAKEN + LIFE + 3
"""Pods of a stream that are served before a gang: the promised number, and those until it holds."""


def streamed(*nodes: str) -> Stream:
    """A stream of small pods that keeps each node busy."""
    bench = Bench(*nodes)
    stream = Stream(bench, life=LIFE * len(nodes))
    for _ in range(stream.life):
        stream.second()
    return stream


def until_whole(stream: Stream, gang: str, size: int, *, bound: int = BOUND) -> int:
    """Have time pass until a gang has all its slices; returns how many others were served."""
    before = stream.served()
    while len(held(stream.bench, gang)) < size:
        stream.second()
        assert len(held(stream.bench, gang)) in (0, size)
        assert stream.served() - before <= bound
    return stream.served() - before


def holding(size: int = 3) -> Stream:
    """A stream that waits, as slices are held back for a gang that is called "a"."""
    stream = streamed("node-a")
    create(stream.bench, "a", *range(size), size=str(size), profile="2g.10gb")
    for _ in range(OVERTAKEN + 3):
        stream.second()
    assert stream.waiting
    assert not held(stream.bench, "a")
    return stream


def check_others_are_served(stream: Stream) -> None:
    waiting = [*stream.waiting]
    stream.second()
    assert all(map(stream.bench.devices, waiting))


def test_two_gangs_that_contend_are_served_one_after_the_other() -> None:
    stream = streamed("node-a")
    for gang in "ab":
        create(stream.bench, gang, 0, 1, 2, size="3", profile="2g.10gb")
    until_whole(stream, "a", 3)
    assert not held(stream.bench, "b")
    delete(stream.bench, "a", 0, 1, 2)
    until_whole(stream, "b", 3, bound=LIFE + 3)


@pytest.mark.parametrize("first", ["gang", "pod"])
def test_a_gang_and_a_big_pod_that_contend_are_both_served(first: str) -> None:
    stream = streamed("node-a")
    bench = stream.bench
    bench.claim(claim("big", request("r", "mig-7g.40gb")))
    if first == "pod":
        bench.pod(pod("p-big", "big"))
        stream.second()
    create(bench, "a", 0, 1, 2, size="3", profile="2g.10gb")
    if first == "gang":
        stream.second()
        bench.pod(pod("p-big", "big"))
    served, before = list[str](), stream.served()
    for _ in range(2 * BOUND):
        stream.second()
        if bench.devices("big") and "big" not in served:
            served.append("big")
            bench.delete_pod("p-big")
            bench.change_claim("big", allocation=None)
        if held(bench, "a") and "a" not in served:
            assert len(held(bench, "a")) == 3
            served.append("a")
            delete(bench, "a", 0, 1, 2)
        if len(served) == 2:
            break
    assert sorted(served) == ["a", "big"]
    assert stream.served() - before <= BOUND + LIFE + 3


def one_is_deleted(stream: Stream) -> None:
    delete(stream.bench, "a", 1)


def all_are_deleted(stream: Stream) -> None:
    delete(stream.bench, "a", 0, 1, 2)


def one_loses_its_claim(stream: Stream) -> None:
    stream.bench.lose_claim("a-1")


def one_is_gated_by_another(stream: Stream) -> None:
    body = stream.bench.api.objects["pods", "a-1"]
    body["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
    stream.bench.pod(body)


def one_joins_another_gang(stream: Stream) -> None:
    body = stream.bench.api.objects["pods", "a-1"]
    body["metadata"]["labels"] = {**body["metadata"]["labels"], NAME_LABEL: "b"}
    stream.bench.pod(body)


@pytest.mark.parametrize(
    "happens",
    [
        one_is_deleted,
        all_are_deleted,
        one_loses_its_claim,
        one_is_gated_by_another,
        one_joins_another_gang,
    ],
)
def test_a_gang_that_cannot_be_whole_lets_go_what_is_held_back(
    happens: Callable[[Stream], None],
) -> None:
    stream = holding()
    happens(stream)
    stream.bench.run(seconds=1.0)
    check_others_are_served(stream)


def test_a_gang_whose_look_fails_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = holding()

    def fails(*_: object, **__: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(GangDecision, "go_on", fails)
    stream.second()
    stream.second()
    assert len(stream.running) == 7, "all slices of the GPU are used"


def failing(size: int) -> tuple[Bench, Callable[[], None], Callable[[], int]]:
    """A pod, or a gang, that asks for a whole GPU, one write of which fails; others came then.

    Returns what ends that, and what counts the others that were served.
    """
    bench = Bench("node-a")
    allowed = refuse(bench, "a-1", ConflictError("stale", status=409))
    profile = "7g.40gb" if size == 1 else "2g.10gb"
    create(bench, "a", *range(1, size + 1), size=str(size), profile=profile)
    bench.run()
    assert len(held(bench, "a")) == size - 1
    create(bench, "small", *range(7), size="1", profile="1g.5gb")
    bench.run()
    return bench, allowed, lambda: len(held(bench, "small"))


LEFT = {1: 0, 3: 1}
"""Small slices beside what a pod, or a gang, asks for."""


@pytest.mark.parametrize("size", LEFT)
def test_room_whose_write_failed_is_kept_until_it_is_written(size: int) -> None:
    bench, allowed, others = failing(size)
    bench.run(seconds=5.0)
    assert others() == LEFT[size]
    allowed()
    bench.run(seconds=10.0)
    assert len(held(bench, "a")) == size
    assert others() == LEFT[size]


def goes(bench: Bench) -> None:
    bench.delete_pod("a-1")


def is_refused(bench: Bench) -> None:
    refuse(bench, "a-1")


def goes_on_in_vain(bench: Bench) -> None:
    bench.run(seconds=times.HOLD[0])
    bench.run(seconds=5.0)
    delete(bench, "small", *range(7))
    bench.run(seconds=times.HOLD[0])  # it is tried again, and fails
    create(bench, "small", *range(7), size="1", profile="1g.5gb")


@pytest.mark.parametrize("happens", [goes, is_refused, goes_on_in_vain])
@pytest.mark.parametrize("size", LEFT)
def test_room_whose_write_failed_is_not_kept_for_ever(
    size: int, happens: Callable[[Bench], None]
) -> None:
    bench, _, others = failing(size)
    happens(bench)
    bench.run(seconds=times.GANG_HALF)
    bench.run(seconds=5.0)
    assert others() == 7


def test_no_room_is_kept_for_a_pod_that_went_before_its_write_failed() -> None:
    bench, desk = at_desk("node-a")
    refuse(bench, "a-1", ConflictError("stale", status=409))
    create(bench, "a", 1, size="1", profile="7g.40gb")
    bench.run()
    bench.remove_pod("a-1")
    bench.run()
    create(bench, "small", *range(7), size="1", profile="1g.5gb")
    settle(bench, desk)
    assert len(held(bench, "small")) == 7


def test_no_pod_takes_what_is_held_back_for_another_of_its_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first may go anywhere, and would go where each of the others has to be."""
    monkeypatch.setattr(line, "OVERTAKEN", 0)
    names = ["node-a", "node-b", "node-c", "node-d"]
    bench = Bench(*names)
    for name in names:
        bench.cluster.set_node(node(name, labels={"name": name}))
        for_ever(bench, name, nodeSelector={"name": name})
    create(bench, "a", 0, size="4", profile="7g.40gb")
    for number, name in enumerate(names[:3], 1):
        create(bench, "a", number, size="4", profile="7g.40gb", nodeSelector={"name": name})
    bench.run(seconds=61.0)
    assert "NextInLine" in bench.recorder.reasons("a-0")
    for name in names:
        bench.delete_pod(f"p-{name}")
        bench.change_claim(name, allocation=None)
    bench.run(seconds=1.0)
    assert [bench.node_of(f"a-{n}") for n in (1, 2, 3, 0)] == names
