"""The queue of the stand-ins' controllers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from sim.daemon import WorkQueue
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.standins import holds_for

MakeQueue = Callable[..., WorkQueue]


@pytest.fixture
def make() -> Iterator[MakeQueue]:
    queues: list[WorkQueue] = []

    def start(handle: Callable[[str], float | None], **options: int) -> WorkQueue:
        queues.append(WorkQueue("test", handle, workers=options.get("workers", 1)))
        queues[-1].start()
        return queues[-1]

    yield start
    for queue in queues:
        queue.stop()


def test_a_key_added_while_it_is_handled_is_handled_once_more(make: MakeQueue) -> None:
    seen: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def handle(key: str) -> None:
        seen.append(key)
        entered.set()
        leave.wait(PATIENCE)

    queue = make(handle, workers=2)
    queue.add("a")
    entered.wait(PATIENCE)
    for _ in range(3):
        queue.add("a")
    assert holds_for(0.1, lambda: seen == ["a"])
    leave.set()
    wait_for("the second time", lambda: seen == ["a", "a"])
    assert holds_for(0.1, lambda: seen == ["a", "a"])


def test_a_failing_key_is_retried_and_does_not_hold_up_others(make: MakeQueue) -> None:
    seen: list[str] = []
    both_added = threading.Event()

    def handle(key: str) -> None:
        assert both_added.wait(PATIENCE)
        seen.append(key)
        if key == "bad" and seen.count("bad") < 3:
            raise RuntimeError("no")

    queue = make(handle)
    queue.add("bad")
    queue.add("good")
    both_added.set()
    wait_for("both", lambda: seen.count("bad") == 3 and "good" in seen)
    assert seen.index("good") < 2
