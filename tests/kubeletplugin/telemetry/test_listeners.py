"""Listeners to changes of the node: told soon, together, and not by whoever made the change."""

from __future__ import annotations

import threading

from kubeletplugin.common import Listeners
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for


def test_changes_of_a_moment_are_told_of_once_and_in_order_in_a_thread_of_its_own() -> None:
    class Clock(FakeClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            changed()
            return super().wait(event, seconds)

    told: list[tuple[str, bool]] = []
    maker = threading.get_ident()
    changed = Listeners(Clock())
    for name in ("a", "b"):
        changed.add(lambda name=name: told.append((name, threading.get_ident() == maker)))  # type: ignore[misc]
    changed()
    assert told == []
    changed.thread.start()
    wait_for("both", lambda: len(told) == 2)
    changed()
    wait_for("both again", lambda: len(told) == 4)
    changed.thread.stop()
    changed.thread.join()
    assert told == [("a", False), ("b", False)] * 2


def test_what_is_found_out_first_is_told_of_with_the_rest_and_not_once_more() -> None:
    class Clock(FakeClock):
        turns = 0

        def wait(self, event: threading.Event, seconds: float) -> bool:
            self.turns += seconds > 0
            return super().wait(event, seconds)

    told: list[str] = []
    clock = Clock()
    changed = Listeners(clock)
    changed.add(lambda: told.append("listener"))

    def find_out() -> None:
        told.append("first")
        changed()

    changed.add_first(find_out)
    changed.thread.start()
    changed()
    wait_for("the listener", lambda: "listener" in told)
    changed.thread.stop()
    changed.thread.join()
    assert told == ["first", "listener"]
    assert clock.turns == 1
