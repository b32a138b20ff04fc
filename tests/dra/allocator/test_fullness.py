from __future__ import annotations

from dra.allocator.places import Taken, fullness, gpu_memory, tiers


def test_a_node_is_as_full_as_the_mean_of_its_shares() -> None:
    assert fullness([Taken(1, 4), Taken(3, 4)]) == 0.5
    assert fullness([Taken(0, 4)]) == 0.0
    assert fullness([Taken(4, 4)]) == 1.0


def test_what_a_node_has_nothing_of_does_not_count() -> None:
    assert fullness([Taken(0, 0), Taken(1, 4)]) == 0.25
    assert fullness([Taken(0, 0)]) == 0.0


def test_gpus_count_by_their_memory_and_the_share_of_its_slices() -> None:
    assert gpu_memory([(40960, 2, 8), (81920, 8, 8)]) == Taken(10240 + 81920, 122880)
    assert gpu_memory([(24576, 0, 4), (40960, 0, 0)]) == Taken(0, 24576)


def test_nodes_that_are_equally_full_stand_together_in_name_order() -> None:
    full = {"c": 0.5, "a": 0.5, "b": 0.1, "d": 0.9}
    assert list(tiers(full, "binpack")) == [["d"], ["a", "c"], ["b"]]
    assert list(tiers(full, "spread")) == [["b"], ["a", "c"], ["d"]]
    assert list(tiers(full, "none")) == [["a", "b", "c", "d"]]


def test_nodes_that_differ_by_rounding_are_equally_full() -> None:
    one, other = (fullness([Taken(a, 10), Taken(b, 10)]) for a, b in ((1, 2), (1 + 1e-12, 2)))
    assert one == other
