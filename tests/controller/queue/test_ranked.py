"""Keys with ranks, such as the times at which they are due."""

from __future__ import annotations

import sys

from controller.worklist import Ranked


def served(keys: Ranked[str]) -> str:
    order = ""
    while (first := keys.first()) is not None:
        order += first
        keys.discard(first)
    return order


def test_the_least_rank_comes_first_and_equals_by_how_long_they_wait() -> None:
    keys: Ranked[str] = Ranked()
    for key, rank in (("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", 0)):
        keys.put(key, rank)
    keys.put("c", 0)  # which has waited longer than d
    keys.put("a", 1)
    keys.discard("e")
    assert (len(keys), keys.get("c"), keys.get("e")) == (4, 0, None)
    assert served(keys) == "bcda"
    assert (len(keys), keys.first()) == (0, None)


def test_a_key_that_changes_its_rank_all_the_time_leaves_nothing_behind() -> None:
    keys, key = Ranked[str](), f"n-{len(Ranked.__name__)}"
    for number in range(1000):
        keys.put(key, number % 7)
    assert sys.getrefcount(key) < 100
    assert keys.first() == key
