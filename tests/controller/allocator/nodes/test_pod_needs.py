"""Host ports, affinity between pods and topology spread decide where a pod is allocated.

The rows come from how kube-scheduler's plugins NodePorts, InterPodAffinity and PodTopologySpread
read them.
"""

from __future__ import annotations

from typing import Any

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide
from tests.controller.helpers.needs import (
    HOST,
    ZONE,
    affine,
    other,
    place,
    ports,
    selector,
    spread,
    world,
)
from tests.controller.helpers.objects import (
    claim,
    node,
    request,
)


def test_nodes_that_the_pod_cannot_go_to_count_as_the_policies_say() -> None:
    known = world(a="x", b="y")
    known.set_node(node("c", labels={HOST: "c", ZONE: "z", "disk": "none"}))
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    known.set_node(node("d", labels={HOST: "d", ZONE: "w", "disk": "ssd"}, taints=[taint]))
    for name in ("a", "b"):
        known.set_node(node(name, labels={HOST: name, ZONE: {"a": "x", "b": "y"}[name]} | SSD))
        other(known, f"on-{name}", name, {"app": "web"})

    def where(**policies: Any) -> str | None:
        even = spread(ZONE, selector(app="web"), **policies)
        return place(known, {"app": "web"}, nodeSelector=SSD, topologySpreadConstraints=even)

    assert where() is None  # d, whose taint does not count, is empty
    assert where(nodeTaintsPolicy="Honor") == "a"
    assert where(nodeTaintsPolicy="Honor", nodeAffinityPolicy="Ignore") is None


SSD = {"disk": "ssd"}


def bench(**zones: str) -> Bench:
    made = Bench()
    for name, zone in zones.items():
        made.add_node(name, labels={HOST: name, ZONE: zone})
    made.run()
    return made


def test_terms_that_are_compared_with_too_many_pods_are_left_to_kube_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """49 terms and 20,000 pods with labels of their own took 1.4 s for each look."""
    monkeypatch.setattr("dra.pods.rules.MOST_COMPARED", 4 * 2 + 4)
    known = world(a="", b="")
    alike = {"app": "x"}
    for number in range(4):
        other(known, f"o{number}", "a", alike | {"number": str(number)})
    shuns = affine(HOST, selector(**alike), anti=True)
    assert place(known, affinity=shuns) == "b"
    other(known, "of-others", "b", {"app": "y"}, namespace="theirs")
    assert place(known, affinity=shuns) == "b", "only its own namespace is compared"
    far = affine(HOST, selector(**alike), anti=True, namespaceSelector={})
    assert place(known, affinity=far) == "a"
    other(known, "o4", "a", alike | {"number": "4"})
    assert place(known, affinity=shuns) == "a"
    known.remove_pod(("default", "o4"))
    assert place(known, affinity=shuns) == "b"


def test_of_each_namespace_so_many_terms_that_shun_others_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 pods with 49 terms each cost every look at a pod of anybody 70 ms."""
    monkeypatch.setattr("dra.pods.residents.MOST_SHUNNING", 2 * 2)
    known = world(a="", b="", c="")
    far = affine(HOST, selector(app="x"), anti=True, namespaceSelector={})
    terms = [f"d{number}" for number in range(2)]
    for name in terms:
        noise = affine(HOST, selector(app=name), anti=True, namespaceSelector={})
        other(known, name, "a", namespace="hostile", affinity=noise)
    other(known, "third", "a", namespace="hostile", affinity=far)
    other(known, "theirs", "b", namespace="theirs", affinity=far)
    assert place(known, {"app": "x"}) == "a", "what is beyond counts no more, others' terms do"
    known.remove_pod(("hostile", "d0"))
    assert place(known, {"app": "x"}) == "c"


# -- preferences of pods decide between nodes that are equal otherwise, and between these alone


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
