"""Overhead of a device on its node, as it is written in an option."""

from __future__ import annotations

import pytest

from dra.resourceslices.resourceslices import Overhead, overhead_fields, read_overhead


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", ()),
        ("memory=512Mi", (("memory", "512Mi"),)),
        (
            " hugepages-2Mi=4Mi , cpu=100m,",
            (("cpu", "100m"), ("hugepages-2Mi", "4Mi")),
        ),
    ],
)
def test_amounts_by_resource(text: str, read: Overhead) -> None:
    assert read_overhead(text) == read
    assert bool(overhead_fields(read)) == bool(read)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("memory", "'memory' has no quantity above 0; write memory=1, memory=512Mi"),
        ("cpu=0", "'cpu=0' has no quantity above 0"),
        ("memory=lots", "'memory=lots' has no quantity above 0"),
        ("nvidia.com/gpu=1", "'nvidia.com/gpu=1' names no resource of a node; write cpu, memory"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        read_overhead(text)
