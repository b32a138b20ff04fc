"""Timers of keys."""

from __future__ import annotations

import sys

from dra.common.queues import Timers


def test_keys_come_when_they_are_due_the_earliest_first() -> None:
    timers: Timers[str] = Timers()
    for key, at in (("c", 3.0), ("a", 1.0), ("b", 1.0), ("d", 9.0)):
        timers.set(key, at)
    assert (timers.next(), len(timers)) == (1.0, 4)
    assert [*timers.take(0.9)] == []
    assert [*timers.take(3.0)] == ["a", "b", "c"]
    assert (timers.next(), len(timers), timers.get("a"), timers.get("d")) == (9.0, 1, None, 9.0)


def test_a_key_is_due_at_the_time_that_was_set_last_or_at_none() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1.0)
    timers.set("a", 5.0)
    timers.set("b", 2.0)
    timers.discard("b")
    assert [*timers.take(4.0)] == []
    assert timers.next() == 5.0
    timers.set("a", 3.0)
    assert [*timers.take(10.0)] == ["a"]
    assert timers.next() is None


def test_a_key_whose_time_changes_all_the_time_leaves_nothing_behind() -> None:
    timers: Timers[str] = Timers()
    key = f"k-{len(Timers.__name__)}"
    for number in range(1000):
        timers.set(key, float(number))
    assert sys.getrefcount(key) < 100
    assert timers.next() == 999.0
