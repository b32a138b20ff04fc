"""Keys with ranks, such as the times at which they are due."""

from __future__ import annotations

import sys

from controller.worklist import Ranked


def test_a_key_that_changes_its_rank_all_the_time_leaves_nothing_behind() -> None:
    keys, key = Ranked[str](), f"n-{len(Ranked.__name__)}"
    for number in range(1000):
        keys.put(key, number % 7)
    assert sys.getrefcount(key) < 100
    assert keys.first() == key
