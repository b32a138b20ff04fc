"""A gang of high priority is allocated where kube-scheduler would end others for its pods."""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import PODS, Obj
from dra.kube.errors import ConflictError
from tests.controller.allocator.nodes.test_preemption import other, site
from tests.controller.helpers.bench import Bench
from tests.controller.serve.gangs.gangpods import create, held, refuse, told


def ask(made: Bench, *numbers: int, cpu: str = "2", priority: int = 100, **spec: Any) -> None:
    size = str(len(numbers))
    create(made, "a", *numbers, size=size, profile="1g.5gb", cpu=cpu, priority=priority, **spec)
    made.run()


def nominated(made: Bench) -> set[str]:
    """The pods of the gang that become nominated, as they are written."""
    seen: set[str] = set()

    def see(_: str) -> None:
        for name in ("a-0", "a-1"):
            if made.api.get(PODS, name).get("status", {}).get("nominatedNodeName"):
                seen.add(name)

    made.api.lost = see
    return seen


def test_it_goes_where_lower_priorities_fill_the_cpu() -> None:
    made = site("a", "b")
    for where in ("a", "b"):
        other(made, f"on-{where}", where, cpu="4")
    ask(made, 0, 1, cpu="3")
    assert {made.node_of(name) for name in held(made, "a")} == {"a", "b"}


def test_on_one_node_it_counts_who_has_to_end_for_all_of_them() -> None:
    made = site("a")
    for number in range(4):
        other(made, f"x-{number}", "a", cpu="1", priority=number)
    ask(made, 0, 1)
    assert held(made, "a") == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("numbers", "spec"),
    [
        ([0, 1, 2], {}),
        ([0, 1], {"priority": 3}),
        ([0, 1], {"preemptionPolicy": "Never"}),
    ],
    ids=["too many", "of equals", "never"],
)
def test_none_has_any_where_that_is_not_enough_for_all(numbers: list[int], spec: Obj) -> None:
    made = site("a")
    for number in range(4):
        other(made, f"x-{number}", "a", cpu="1", priority=number)
    ask(made, *numbers, **spec)
    assert not held(made, "a")
    assert "insufficient cpu" in told(made, "a-0")


def test_nobody_is_to_end_for_a_gang_before_all_of_it_have_theirs() -> None:
    made = site("a", "b")
    for where in ("a", "b"):
        other(made, f"on-{where}", where, cpu="4")
    allowed = refuse(made, "a-1", ConflictError("stale", status=409))
    ask(made, 0, 1, cpu="3")
    seen = nominated(made)
    made.run(seconds=5.0)
    made.run(seconds=5.0)
    assert held(made, "a") == ["a-0"]
    assert not seen
    allowed()
    for _ in range(8):
        made.run(seconds=4.0)
    assert held(made, "a") == ["a-0", "a-1"]
    assert seen == {"a-0", "a-1"}
