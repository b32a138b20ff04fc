"""A pod of high priority is allocated where kube-scheduler would end others for it."""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, instance, mignode, pod, versioned
from tests.controller.helpers.objects import gpu as gpu_of


def site(*names: str) -> Bench:
    made = Bench()
    for name in names:
        made.add_node(name, cpu="4")
    made.run()
    return made


def other(made: Bench, name: str, where: str, *, cpu: str, priority: int = 0, **spec: Any) -> None:
    """A pod without claims that is bound to a node."""
    body = pod(name, cpu=cpu, nodeName=where, priority=priority, **spec)
    made.cluster.set_pod(versioned(body))


def ask(made: Bench, *, cpu: str = "2", priority: int = 100, **spec: Any) -> Obj:
    """A pod whose claim is called like it."""
    made.claim(claim("p"))
    body = made.pod(pod("p", "p", cpu=cpu, priority=priority, **spec))
    made.run()
    return body


Others = dict[str, list[tuple[str, int]]]
"""By node the CPU and the priority of the pods on it."""

CHOICES: dict[str, tuple[Others, Obj, str]] = {
    "where lower priorities fill the CPU": ({"a": [("4", 100)], "b": [("4", 10)]}, {}, "b"),
    "to free room first": ({"a": [("3", 0)], "b": []}, {}, "b"),
    "not to equals": ({"a": [("4", 10)]}, {"priority": 10}, ""),
    "not to a higher priority": ({"a": [("4", 10)]}, {"priority": 0}, ""),
    "not with the policy Never": ({"a": [("4", 10)]}, {"preemptionPolicy": "Never"}, ""),
    "not where all would not be enough": ({"a": [("4", 10)]}, {"cpu": "5"}, ""),
    "where one of 0 is enough": ({"a": [("2", 20), ("2", 0)], "b": [("4", 0)]}, {}, "a"),
    "where the highest is lowest": ({"a": [("4", 20)], "b": [("4", 10)]}, {}, "b"),
    "where fewest end": (
        {"a": [("1", 10), ("1", 10), ("2", 100)], "b": [("2", 10), ("2", 100)]},
        {},
        "b",
    ),
    "to many of 15 rather than one of 20": (
        {"a": [("4", 20)], "b": [("2", 15), ("2", 15)]},
        {"cpu": "4"},
        "b",
    ),
}
"""Pods on nodes, what is asked for, and the node that gets it, empty for none."""


@pytest.mark.parametrize("name", CHOICES)
def test_the_node_is_the_one_where_the_least_is_ended(name: str) -> None:
    on, asked, expected = CHOICES[name]
    made = site(*on)
    for where, pods in on.items():
        for number, (cpu, priority) in enumerate(pods):
            other(made, f"{where}{number}", where, cpu=cpu, priority=priority)
    ask(made, **asked)
    if expected:
        assert made.node_of("p") == expected
    else:
        assert made.devices("p") == []
        assert "insufficient cpu" in made.recorder.events[-1][-1]


def test_a_pod_that_is_not_bound_yet_is_not_ended() -> None:
    made = site("a")
    made.serve("first", "first", cpu="4")
    assert made.node_of("first") == "a"
    ask(made)
    assert made.devices("p") == []


def test_a_host_port_of_a_lower_priority_can_be_had() -> None:
    ports = [{"name": "m", "image": "none", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    made = site("a", "b")
    other(made, "x", "a", cpu="0", priority=100, containers=ports)
    other(made, "y", "b", cpu="0", containers=ports)
    ask(made, containers=ports)
    assert made.node_of("p") == "b"


def test_the_node_that_is_being_emptied_for_it_comes_first() -> None:
    made = site("a", "b", "c")
    for name, priority in (("a", 5), ("b", 10), ("c", 20)):
        other(made, f"on-{name}", name, cpu="4", priority=priority)
    body = ask(made)
    assert made.node_of("p") == "a"
    made.change_claim("p", allocation=None)
    made.pod({**body, "status": {"phase": "Pending", "nominatedNodeName": "c"}})
    made.run()
    assert made.node_of("p") == "c"


def test_it_is_tried_again_when_a_pod_of_lower_priority_comes() -> None:
    made = site("a")
    other(made, "x", "a", cpu="4", priority=100)
    ask(made)
    assert made.devices("p") == []
    made.cluster.remove_pod(("default", "x"))
    other(made, "y", "a", cpu="4", priority=1)
    made.run()
    assert made.node_of("p") == "a"


def test_nobody_is_ended_where_no_gpu_has_room() -> None:
    made = site("a")
    full = gpu_of(node="a", instances=(instance("7g.40gb", 0),))
    made.cluster.set_mignode(mignode("a", full))
    other(made, "x", "a", cpu="4")
    ask(made)
    assert made.devices("p") == []
