"""Groups that take turns, and the queue that serves them."""

from __future__ import annotations

import sys

from dra.common.queues import FairQueue, Turns
from tests.helpers.ranks import Rank


def queue(**groups: str) -> FairQueue[str, str]:
    """Entries named by one letter each, in the order of the groups."""
    found: FairQueue[str, str] = FairQueue()
    for group, keys in groups.items():
        for key in keys:
            found.put(group, key, key.upper())
    return found


def served(found: FairQueue[str, str]) -> str:
    order = ""
    while (first := found.first()) is not None:
        order += found.take(first[0])
    return order


def test_an_entry_that_is_changed_keeps_its_place() -> None:
    found = queue(many="abc")
    found.put("many", "a", "Z")
    assert (len(found), found.get("a")) == (3, "Z")
    assert served(found) == "ZBC"


def test_what_is_taken_out_is_not_served() -> None:
    found = queue(many="abc", one="m")
    for key in ("a", "m", "gone"):
        found.discard(key)
    assert served(found) == "BC"


def compared_per_turn(groups: int) -> float:
    turns = Turns()
    for number in range(groups):
        turns.wait(f"group-{number}", Rank(0))
    Rank.compared = 0
    for _ in range(1000):
        first = turns.first()
        assert first is not None
        turns.leave(first)
        turns.wait(first, Rank(0))
    return Rank.compared / 1000


def test_a_turn_costs_about_as_much_among_thousands_of_groups_as_among_a_few() -> None:
    assert compared_per_turn(10_000) < compared_per_turn(10) + 80


def test_the_least_rank_comes_first_and_equals_by_how_long_they_wait() -> None:
    turns = Turns()
    for group, rank in (("a", 1), ("b", 0), ("c", 1), ("d", 0)):
        turns.wait(group, rank)
    turns.wait("c", 0)  # which has waited longer than d
    turns.wait("a", 1)
    order = []
    while (first := turns.first()) is not None:
        order.append(first)
        turns.leave(first)
    assert order == ["b", "c", "d", "a"]


def test_a_group_that_changes_its_rank_all_the_time_leaves_nothing_behind() -> None:
    turns, group = Turns(), f"n-{len(Turns.__name__)}"
    for number in range(1000):
        turns.wait(group, number % 7)
    assert sys.getrefcount(group) < 100
    assert turns.first() == group
