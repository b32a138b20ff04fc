"""A pod that asks for much is overtaken so often, and no longer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller import times
from controller.queue.line import OVERTAKEN
from dra.common.resources import PODS
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, device_class, node, pod, request


class Stream:
    """Pods that ask for one small slice each, every second one, and live for ``life`` seconds."""

    def __init__(self, bench: Bench, *, life: int) -> None:
        self.bench = bench
        self.life = life
        self.number = 0
        self.waiting: list[str] = []
        self.running: list[tuple[float, str]] = []

    def second(self) -> None:
        """One second: the oldest end, one is created."""
        bench = self.bench
        for end, name in [r for r in self.running if r[0] <= bench.time]:
            self.running.remove((end, name))
            bench.delete_pod(f"p-{name}")
            bench.lose_claim(name)
        self.number += 1
        name = f"small-{self.number:03}"
        bench.claim(claim(name))
        bench.pod({**pod(f"p-{name}", name), "metadata": self.metadata(f"p-{name}")})
        bench.run(seconds=1.0)
        self.waiting.append(name)
        for served in [n for n in self.waiting if bench.devices(n)]:
            self.waiting.remove(served)
            bench.bind(f"p-{served}", bench.node_of(served), phase="Running")
            self.running.append((bench.time + self.life, served))

    def metadata(self, name: str) -> dict[str, str]:
        created = f"2026-01-01T00:{self.number // 60:02}:{self.number % 60:02}Z"
        return {"name": name, "namespace": "default", "creationTimestamp": created}

    def served(self) -> int:
        """Number of all that were served."""
        return self.number - len(self.waiting)


def with_big(bench: Bench, profile: str = "7g.40gb", **spec: Any) -> None:
    bench.serve("p-big", "big", request("r", f"mig-{profile}"), **spec)


def streams(life: int = 5) -> Iterator[Stream]:
    """A bench with one A100, never empty."""
    bench = Bench("node-a")
    stream = Stream(bench, life=life)
    for _ in range(life):
        stream.second()
    yield stream


def test_a_large_slice_does_not_starve_behind_a_stream_of_small_ones() -> None:
    (stream,) = streams()
    with_big(stream.bench)
    seconds = 0
    while not stream.bench.devices("big"):
        stream.second()
        seconds += 1
        assert seconds <= OVERTAKEN + stream.life + 3
    assert seconds > OVERTAKEN
    assert stream.bench.recorder.reasons("big").count("NextInLine") == 1


def is_deleted(bench: Bench) -> None:
    bench.delete_pod("p-big")


def fails(bench: Bench) -> None:
    """As activeDeadlineSeconds has it."""
    obj = copy.deepcopy(bench.api.get(PODS, "p-big"))
    bench.pod({**obj, "status": {"phase": "Failed"}})


def loses_its_claim(bench: Bench) -> None:
    bench.lose_claim("big")


def loses_its_class(bench: Bench) -> None:
    bench.cluster.set_class(device_class("mig-7g.40gb", "device.driver == 'mig.dra.dev' &&"))
    bench.cluster.set_pod(bench.api.get(PODS, "p-big"))


def asks_for_what_is_gone(bench: Bench) -> None:
    expression = "device.driver == 'mig.dra.dev' && device.attributes['mig.dra.dev'].type == 'no'"
    bench.cluster.set_class(device_class("mig-7g.40gb", expression))


def is_gated_by_another(bench: Bench) -> None:
    obj = copy.deepcopy(bench.api.get(PODS, "p-big"))
    obj["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
    bench.pod(obj)


@pytest.mark.parametrize(
    "happens",
    [
        is_deleted,
        fails,
        loses_its_claim,
        loses_its_class,
        asks_for_what_is_gone,
        is_gated_by_another,
    ],
)
def test_nothing_is_held_back_for_a_pod_that_does_not_wait_for_room(
    happens: Callable[[Bench], None],
) -> None:
    (stream,) = streams()
    with_big(stream.bench)
    for _ in range(OVERTAKEN + 2):
        stream.second()
    bench = stream.bench
    waiting = f"small-{stream.number:03}"
    assert not bench.devices(waiting)
    happens(bench)
    bench.run(seconds=1.0)
    assert bench.devices(waiting)


def test_what_was_held_back_elsewhere_is_free_for_others() -> None:
    bench = Bench("node-a", "node-b")
    bench.cluster.set_node(node("node-a", labels={"which": "a"}))
    stream = Stream(bench, life=500)
    for _ in range(14):
        stream.second()
    with_big(bench)
    on_a, on_b = (
        [n for _, n in stream.running if bench.node_of(n) == x] for x in ("node-a", "node-b")
    )
    for name in on_a[:4]:
        bench.delete_pod(f"p-{name}")
    bench.run(seconds=times.OVERTAKEN_ONCE)
    stream.second()
    bench.run(seconds=61.0)
    assert "of node node-a" in bench.recorder.events[-1][3]
    early = {**pod("early", "early", nodeSelector={"which": "a"})}
    early["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    bench.claim(claim("early"))
    bench.pod(early)
    bench.run(seconds=times.PLAN_AGAIN)
    assert not bench.devices("early")
    for name in on_b[:5]:
        bench.delete_pod(f"p-{name}")
    bench.run(seconds=1.0)
    bench.run(seconds=1.0)
    assert bench.devices("early")


def test_many_for_whom_nothing_can_be_held_back_do_not_keep_others_from_being_next() -> None:
    (stream,) = streams()
    bench = stream.bench
    for number in range(100):
        bench.ask(f"p-lost-{number}", f"lost-{number}", nodeSelector={"no": "such"})
    stream.number += 1
    bench.claim(claim("big", request("r", "mig-7g.40gb")))
    bench.pod({**pod("p-big", "big"), "metadata": stream.metadata("p-big")})
    bench.run()
    seconds = 0
    while not bench.devices("big"):
        stream.second()
        seconds += 1
        assert seconds < 4 * OVERTAKEN


def test_what_is_held_back_does_not_keep_a_higher_priority_waiting() -> None:
    (stream,) = streams()
    with_big(stream.bench)
    for _ in range(OVERTAKEN + 2):
        stream.second()
    bench = stream.bench
    assert not bench.devices(f"small-{stream.number:03}")
    bench.serve("p-urgent", "urgent", priority=1000)
    assert bench.devices("urgent")
