"""A queue that serves groups by turns."""

from __future__ import annotations

from dra.common.fair_queue import FairQueue


def queue(**groups: str) -> FairQueue[str, str]:
    """Entries named by one letter each, in the order of the groups."""
    found: FairQueue[str, str] = FairQueue()
    for group, keys in groups.items():
        for key in keys:
            found.put(group, key, key.upper())
    return found


def served(found: FairQueue[str, str]) -> str:
    order = ""
    while len(found):
        key, _ = next(found.heads())
        order += found.take(key)
    return order


def test_groups_take_turns_and_within_one_the_oldest_goes_first() -> None:
    assert served(queue(many="abcde", few="xy", one="m")) == "AXMBYCDE"


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


def test_what_is_too_much_is_dropped_from_the_group_that_has_most() -> None:
    found = queue(one="m", many="abc", few="xy")
    found.drop_of_largest()
    found.drop_of_largest()
    assert found.get("m")
    assert found.get("a") is None
    assert len(found) == 4
    found.clear()
    assert (len(found), [*found.heads()]) == (0, [])
