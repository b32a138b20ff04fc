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
from tests.controller.helpers.deciding import why
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
    pod,
    versioned,
)


@pytest.mark.parametrize(
    ("taken", "wanted", "fits"),
    [
        (ports(80), ports(80), False),
        (ports(80), ports(81), True),
        (ports(80), ports(79, 80), False),
        (ports(80, protocol="UDP"), ports(80), True),
        (ports(80, address="127.0.0.1"), ports(80), False),
        (ports(80), ports(80, address="127.0.0.1"), False),
        (ports(80, address="10.0.0.1"), ports(80, address="127.0.0.1"), True),
        (ports(80, address="10.0.0.1"), ports(80, address="10.0.0.1"), False),
        (ports(80, address="0.0.0.0"), ports(80), False),
    ],
)
def test_a_host_port_is_for_one_pod_of_a_node(
    taken: list[Obj],
    wanted: list[Obj],
    fits: bool,  # noqa: FBT001
) -> None:
    known = world(a="", b="")
    other(known, "o", "a", containers=taken)
    assert place(known, containers=wanted) == ("a" if fits else "b")


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


# -- affinity between pods


def test_a_pod_goes_where_such_pods_run() -> None:
    known = world(a="x", b="y", c="y")
    other(known, "o", "c", {"app": "db"})
    assert place(known, affinity=affine(HOST, selector(app="db"))) == "c"
    assert place(known, affinity=affine(ZONE, selector(app="db"))) == "b"
    assert place(known, affinity=affine(ZONE, selector(app="web"))) is None
    assert place(known, affinity=affine(ZONE, None)) is None


def test_the_first_of_those_that_seek_each_other_goes_anywhere() -> None:
    known = world(a="x", b="y")
    seeking = affine(ZONE, selector(app="web"))
    assert place(known, {"app": "web"}, affinity=seeking) == "a"
    assert place(known, {"app": "db"}, affinity=seeking) is None
    assert place(known, {"app": "web"}, affinity=affine("rack", selector(app="web"))) is None
    other(known, "o", "b", {"app": "web"})
    assert place(known, {"app": "web"}, affinity=seeking) == "b"


def test_all_terms_are_about_one_pod() -> None:
    known = world(a="x", b="y")
    other(known, "o", "a", {"app": "db"})
    other(known, "q", "b", {"app": "db", "tier": "hot"})
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    both = [affine(ZONE, selector(**s))["podAffinity"][required][0] for s in DB_AND_HOT]
    assert place(known, affinity={"podAffinity": {required: both}}) == "b"


DB_AND_HOT = ({"app": "db"}, {"tier": "hot"})


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


@pytest.mark.parametrize(
    ("term", "where"),
    [
        ({}, "a"),
        ({"namespaces": ["team"]}, "b"),
        ({"namespaces": ["others"]}, "a"),
        ({"namespaceSelector": {}}, "b"),
        ({"namespaceSelector": {"matchLabels": {"of": "team"}}}, "b"),
        ({"namespaceSelector": {"matchLabels": {"of": "us"}}}, "a"),
    ],
)
def test_a_term_is_about_pods_of_its_namespaces(term: Obj, where: str) -> None:
    known = world(a="x", b="y")
    known.hosts.residents.set_namespace("team", {"of": "team"})
    other(known, "o", "a", {"app": "db"}, namespace="team")
    shunning = affine(ZONE, selector(app="db"), anti=True, **term)
    assert place(known, affinity=shunning) == where
    # And the other way round: the one that is there shuns.
    known = world(a="x", b="y")
    known.hosts.residents.set_namespace("default", {"of": "team"})
    home = term | ({"namespaces": ["default"]} if term.get("namespaces") == ["team"] else {})
    shunning = affine(ZONE, selector(app="db"), anti=True, **home)
    other(known, "o", "a", namespace="team", affinity=shunning)
    assert place(known, {"app": "db"}) == where


def test_a_pod_stays_away_from_those_that_shun_it() -> None:
    known = world(a="x", b="x", c="y")
    other(known, "o", "a", affinity=affine(ZONE, selector(app="web"), anti=True))
    assert place(known, {"app": "web"}) == "c"
    assert place(known, {"app": "db"}) == "a"
    assert place(known) == "a"
    known.remove_pod(("default", "o"))
    assert place(known, {"app": "web"}) == "a"


def test_twenty_that_shun_each_other_get_a_node_each() -> None:
    names = [f"n{i:02}" for i in range(20)]
    known = world(**dict.fromkeys(names, ""))
    shunning = affine(HOST, selector(app="web"), anti=True)
    for name in names:
        assert place(known, {"app": "web"}, affinity=shunning) == name
        other(known, f"on-{name}", name, {"app": "web"}, affinity=shunning)
    assert place(known, {"app": "web"}, affinity=shunning) is None


# -- topology spread


def test_a_domain_gets_no_more_than_the_skew_ahead_of_the_emptiest() -> None:
    known = world(a="x", b="y")
    even = spread(ZONE, selector(app="web"))
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "a"
    other(known, "o", "a", {"app": "web"})
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "b"
    assert place(known, {"app": "db"}, topologySpreadConstraints=even) == "a"
    two = spread(ZONE, selector(app="web"), skew=2)
    assert place(known, {"app": "web"}, topologySpreadConstraints=two) == "a"


@pytest.mark.parametrize(
    ("there", "where"),
    [({"ending": True}, "a"), ({"namespace": "team"}, "a"), ({}, "b")],
)
def test_pods_that_end_or_are_of_another_namespace_do_not_count(there: Obj, where: str) -> None:
    known = world(a="x", b="y")
    other(known, "o", "a", {"app": "web"}, **there)
    even = spread(ZONE, selector(app="web"))
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == where


def test_an_empty_selector_counts_nobody_and_none_selects_nobody() -> None:
    known = world(a="x", b="y")
    other(known, "o", "a", {"app": "web"})
    nothing: list[Obj | None] = [{}, None]
    for none in nothing:
        even = spread(ZONE, none)
        assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "a"


def test_nodes_without_the_label_have_no_part_and_take_none() -> None:
    known = world(a="", b="x")
    even = spread(ZONE, selector(app="web"))
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "b"
    other(known, "o", "b", {"app": "web"})
    assert place(known, {"app": "web"}, topologySpreadConstraints=even) == "b"


def test_too_few_domains_count_as_an_empty_one() -> None:
    known = world(a="x", b="y")
    for name in ("a", "b"):
        other(known, f"on-{name}", name, {"app": "web"})
    web = {"app": "web"}
    even = spread(ZONE, selector(app="web"))
    assert place(known, web, topologySpreadConstraints=even) == "a"
    more = spread(ZONE, selector(app="web"), minDomains=3)
    assert place(known, web, topologySpreadConstraints=more) is None


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


def test_the_pods_own_labels_narrow_the_selector() -> None:
    known = world(a="x", b="y")
    other(known, "o", "a", {"app": "web", "version": "1"})
    even = spread(ZONE, selector(app="web"), matchLabelKeys=["version"])
    labels = {"app": "web", "version": "2"}
    assert place(known, labels, topologySpreadConstraints=even) == "a"
    labels["version"] = "1"
    assert place(known, labels, topologySpreadConstraints=even) == "b"


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


# -- woken by others


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


def test_a_pod_is_looked_at_again_when_the_one_that_it_seeks_is_bound() -> None:
    made = bench(a="x", b="y")
    wait_for_devices(made, {}, affinity=affine(ZONE, selector(app="db")))
    assert made.devices("p") == []
    assert "pod affinity" in made.recorder.events[-1][-1]
    other(made.cluster, "o", "b", {"app": "web"})
    made.run()
    assert made.devices("p") == []
    other(made.cluster, "q", "b", {"app": "db"})
    made.run()
    assert made.node_of("p") == "b"


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
