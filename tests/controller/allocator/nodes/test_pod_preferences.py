"""Preferences of pods decide between nodes that are equal otherwise, and between these alone."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.needs import HOST, ZONE, other, place, ports, selector, spread, world
from tests.controller.helpers.objects import claim, gpu, instance, mignode, request

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def liking(topology: str, labels: Obj, *, anti: bool = False, weight: int = 1) -> Obj:
    term = {"topologyKey": topology, "labelSelector": labels}
    kind = "podAntiAffinity" if anti else "podAffinity"
    return {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}


def liking_zone(zone: str, *, weight: int = 1) -> Obj:
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    term = {"weight": weight, "preference": {"matchExpressions": [expression]}}
    return {"nodeAffinity": {PREFERRED: [term]}}


def soft(topology: str, labels: Obj) -> list[Obj]:
    return spread(topology, labels, whenUnsatisfiable="ScheduleAnyway")


TWO = ([request()], [request(), request("s")])


@pytest.mark.parametrize("requests", TWO)
@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ({}, "a"),
        ({"affinity": liking_zone("y")}, "b"),
        ({"affinity": liking_zone("q")}, "a"),
        ({"affinity": liking(ZONE, {"matchLabels": {"app": "web"}})}, "b"),
        ({"affinity": liking(HOST, {"matchLabels": {"app": "db"}}, anti=True)}, "b"),
        ({"topologySpreadConstraints": soft(ZONE, {"matchLabels": {"app": "db"}})}, "b"),
        ({"topologySpreadConstraints": soft(ZONE, {"matchLabels": {"app": "web"}})}, "a"),
        ({"topologySpreadConstraints": soft("rack", {"matchLabels": {"app": "db"}})}, "a"),
    ],
)
def test_what_a_pod_prefers_decides_between_equals(
    spec: Obj, where: str, requests: list[Obj]
) -> None:
    known = world(a="x", b="y")
    other(known, "on-a", "a", {"app": "db"})
    other(known, "on-b", "b", {"app": "web"})
    found = decide(known, claim("c", *requests), **spec)
    assert found is not None
    assert found.node == where


@pytest.mark.parametrize("requests", TWO)
def test_a_fuller_gpu_goes_before_what_a_pod_prefers(requests: list[Obj]) -> None:
    known = world(a="x", b="y")
    known.set_mignode(mignode("a", gpu(node="a", instances=(instance("3g.20gb", 4),))))
    found = decide(known, claim("c", *requests), affinity=liking_zone("y"))
    assert found is not None
    assert found.node == "a"


def test_what_is_preferred_is_weighed_by_how_many_there_are() -> None:
    known = world(a="x", b="y", c="z")
    for number, where in enumerate("abb"):
        other(known, f"o{number}", where, {"app": "web"})
    both = liking(ZONE, selector(app="web"), weight=1) | liking_zone("z", weight=100)
    assert place(known, affinity=liking(ZONE, selector(app="web"))) == "b"
    assert place(known, affinity=both) == "b", "each counts up to 100, and b is first by name"
    assert place(known, affinity=liking_zone("z")) == "c"


def test_a_node_that_is_preferred_and_does_not_fit_is_not_taken() -> None:
    known = world(a="x", b="y")
    other(known, "o", "b", containers=ports(80))
    assert place(known, affinity=liking_zone("y"), containers=ports(80)) == "a"
