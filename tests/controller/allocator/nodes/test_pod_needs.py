"""Host ports, affinity between pods and topology spread decide where a pod is allocated.

The rows come from how kube-scheduler's plugins NodePorts, InterPodAffinity and PodTopologySpread
read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, why
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
    gpu,
    instance,
    mignode,
    node,
    pod,
    request,
    versioned,
)


def test_ports_of_sidecars_count_and_those_of_other_init_containers_do_not() -> None:
    sidecar = [{**ports(80)[0], "name": "i", "restartPolicy": "Always"}]
    known = world(a="", b="")
    other(known, "o", "a", initContainers=sidecar)
    assert place(known, containers=ports(80)) == "b"
    other(known, "o", "a", initContainers=[{**ports(80)[0], "name": "i"}])
    assert place(known, containers=ports(80)) == "a"


def test_the_port_that_is_taken_everywhere_is_named() -> None:
    known = world(a="")
    other(known, "o", "a", containers=ports(8080))
    assert "host port TCP 8080 taken" in why(known, claim("c"), containers=ports(8080)).message


def test_a_pod_that_is_not_bound_yet_is_not_sought_and_is_shunned() -> None:
    """kube-scheduler may come to the one that seeks it first."""
    known = world(a="x", b="y")
    body = pod("o", "held")
    body["metadata"]["labels"] = {"app": "db"}
    known.set_claim(versioned(claim("held")))
    known.set_pod(versioned(body))
    (waiting,) = known.pods.values()
    known.hosts.place(waiting, "a")
    assert place(known, affinity=affine(ZONE, selector(app="db"))) is None
    assert place(known, affinity=affine(ZONE, selector(app="db"), anti=True)) == "b"


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


def test_a_domain_is_not_filled_before_those_that_are_about_to_come_are_there() -> None:
    """kube-scheduler may bind the second of a domain before the first of another."""
    known = world(a="x", b="y")
    even = spread(ZONE, selector(app="web"))
    for name, where in (("one", "a"), ("two", "b")):
        body = pod(name, f"of-{name}")
        body["metadata"]["labels"] = {"app": "web"}
        known.set_claim(versioned(claim(f"of-{name}")))
        known.set_pod(versioned(body))
        known.hosts.place(known.pods["default", name], where)
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) is None
    other(known, "one", "a", {"app": "web"})
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "b"


def bench(**zones: str) -> Bench:
    made = Bench()
    for name, zone in zones.items():
        made.add_node(name, labels={HOST: name, ZONE: zone})
    made.run()
    return made


def wait_for_devices(made: Bench, labels: Mapping[str, str], **spec: Any) -> None:
    """A pod whose claim is called like it."""
    made.claim(claim("p"))
    body = pod("p", "p", **spec)
    body["metadata"]["labels"] = dict(labels)
    made.pod(body)
    made.run()


def test_a_pod_is_looked_at_again_when_the_emptiest_domain_gets_fuller() -> None:
    made = bench(a="x")
    made.cluster.set_node(node("c", labels={HOST: "c", ZONE: "z"}))
    other(made.cluster, "o", "a", {"app": "web"})
    even = spread(ZONE, selector(app="web"))
    wait_for_devices(made, {"app": "web"}, topologySpreadConstraints=even)
    assert made.devices("p") == []
    other(made.cluster, "q", "c", {"app": "web"})
    made.run()
    assert made.node_of("p") == "a"


def test_who_waits_for_a_host_port_gets_the_node_when_it_is_free() -> None:
    made = bench(a="x")
    other(made.cluster, "o", "a", containers=ports(80))
    wait_for_devices(made, {}, containers=ports(80))
    assert made.devices("p") == []
    made.cluster.remove_pod(("default", "o"))
    made.run()
    assert made.node_of("p") == "a"


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
