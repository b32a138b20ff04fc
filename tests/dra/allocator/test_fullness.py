from __future__ import annotations

from dra.allocator.places import Taken, fullness


def test_what_a_node_has_nothing_of_does_not_count() -> None:
    assert fullness([Taken(0, 0), Taken(1, 4)]) == 0.25
    assert fullness([Taken(0, 0)]) == 0.0


def test_nodes_that_differ_by_rounding_are_equally_full() -> None:
    one, other = (fullness([Taken(a, 10), Taken(b, 10)]) for a, b in ((1, 2), (1 + 1e-12, 2)))
    assert one == other
