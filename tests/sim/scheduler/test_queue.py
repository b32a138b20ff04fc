"""Which pod is looked at when."""

from __future__ import annotations

import pytest

from sim.scheduler.scheduler import SchedulingQueue


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> SchedulingQueue:
    queue = SchedulingQueue(clock)
    queue.add("a")
    return queue


def test_a_rejected_pod_rests_until_something_that_rejected_it_changes(
    queue: SchedulingQueue,
) -> None:
    assert queue.take(0) == "a"
    queue.reject("a", ["NodeAffinity"])
    assert queue.take(0) is None
    queue.wake(["DynamicResources"])
    assert queue.take(0) is None
    queue.wake(["NodeAffinity"])
    assert queue.take(0) == "a"


def test_a_woken_pod_that_backs_off_lets_ready_ones_go_first(queue: SchedulingQueue) -> None:
    queue.take(0)
    queue.reject("a", ["DynamicResources"])
    queue.wake(["DynamicResources"])
    queue.add("b")
    assert queue.take(0) == "b"


def test_a_change_while_the_pod_is_looked_at_is_not_missed(queue: SchedulingQueue) -> None:
    queue.take(0)
    queue.wake(["DynamicResources"], ["a"])
    queue.reject("a", ["DynamicResources"])
    assert queue.take(0) == "a"


def test_after_an_error_the_back_off_doubles_up_to_ten_seconds(
    queue: SchedulingQueue, clock: Clock
) -> None:
    pauses = []
    assert queue.take(0) == "a"
    for _ in range(6):
        queue.fail("a")
        failed = clock.now
        while queue.take(0) is None:
            clock.now += 0.5
        pauses.append(clock.now - failed)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_rejected_pod_is_looked_at_after_five_minutes_in_any_case(
    queue: SchedulingQueue, clock: Clock
) -> None:
    queue.take(0)
    queue.reject("a", ["NodeAffinity"])
    clock.now += 299.0
    assert queue.take(0) is None
    clock.now += 1.0
    assert queue.take(0) == "a"


def test_a_removed_pod_is_not_looked_at(queue: SchedulingQueue) -> None:
    queue.remove("a")
    assert queue.take(0) is None
