"""Nodes that the scheduler refuses, and the list of work."""

from __future__ import annotations

from typing import cast

import pytest

from controller import times
from controller.cluster.cluster import Cluster
from controller.queue import refusals
from controller.queue.refusals import TOPOLOGIES, Refusals
from controller.queue.refused import About, Refused
from dra.pods.nodefit import NodeFacts


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def refusals_at(now: Hand) -> Refusals:
    return Refusals(cast("Cluster", None), Refused(now), now)


@pytest.mark.parametrize("changed", ["b", ""])
def test_where_another_driver_offers_something_else_is_tried_again_soon_and_first(
    changed: str,
) -> None:
    now = Hand()
    exclusions = refusals_at(now)
    nodes = {name: NodeFacts(name, {TOPOLOGIES[0]: "z"}) for name in ("a", "b", "c")}
    for node in ("b", "b", "a"):
        now.time += 1
        exclusions.refuse("t", node)
    exclusions.renew("c")
    assert next(exclusions.tried_last("t", nodes, set())) == {"a", "b"}
    exclusions.renew(changed)
    assert set(exclusions.excluded("t")) == {"a", "b"}
    now.time += 1.1
    assert set(exclusions.excluded("t")) == ({"a"} if changed else set())
    assert next(exclusions.tried_last("t", nodes, set()), set()) == (
        {"a", "c"} if changed else set()
    )
    assert exclusions.refuse("t", "b") == 20
    assert next(exclusions.tried_last("t", nodes, set())) == ({"a", "b"} if changed else {"b", "c"})


def test_refusals_are_bounded_and_those_of_the_last_templates_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "MOST", 10)
    exclusions = refusals_at(Hand())
    for number in range(6):
        exclusions.refuse(f"pod-{number}", "node-a")
        exclusions.refuse("often", f"node-{number}")
        exclusions.bound(f"pod-{number}", "node-b")
    assert len(exclusions.excluded("often")) == 6
    assert [n for n in range(6) if exclusions.excluded(f"pod-{n}")] == [5]


def test_a_refusal_stands_until_its_time_or_until_room_that_could_serve() -> None:
    now, serving = Hand(), set[str]()
    table = Refused(now)

    def stands(what: str) -> bool:
        found = table.find(About.SEARCH, what, lambda nodes: bool(serving & {*nodes}))
        return found is not None

    table.note(About.SEARCH, "for a while", seconds=10)
    table.note(About.SEARCH, "until room", room=table.room.version)
    assert not table.find(About.PLAN, "until room"), "what one rule refuses, others do not"
    table.room.make(["node-a"])
    assert stands("for a while")
    assert stands("until room"), "not there"
    now.time += 10
    assert not stands("for a while")
    serving.add("node-a")
    assert stands("until room"), "what is there was there before, and did not help"
    table.room.make(["node-b"])
    assert stands("until room")
    now.time += times.REFUSAL_DETAILS
    assert not stands("until room"), "its details are out of date"
    table.note(About.SEARCH, "until room", room=table.room.version)
    assert stands("until room")
    table.room.make(["node-a"])
    assert not stands("until room")
    table.note(About.SEARCH, "until room", room=table.room.version)
    table.room.make([], anywhere=True)
    assert not stands("until room")
