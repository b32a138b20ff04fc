"""Rules between pods at random, held to a plain reading of what kube-scheduler does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dra.common.resources import Obj
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import Pod, read_pod
from dra.pods.residents import Hosts
from dra.pods.rules import find_rules
from tests.controller.helpers.objects import pod

HOST, ZONE = "kubernetes.io/hostname", "zone"
NODES = ("a", "b", "c", "d")
NAMESPACES = {"one": {"of": "us"}, "two": {"of": "them"}}

_labels = st.fixed_dictionaries(
    {}, optional={"app": st.sampled_from(["x", "y"]), "tier": st.just("1")}
)
_selectors = st.one_of(
    st.none(),
    st.builds(lambda labels: {"matchLabels": labels}, _labels),
    st.builds(
        lambda operator, value: {
            "matchExpressions": [
                {"key": "app", "operator": operator}
                | ({"values": [value]} if operator.endswith("In") else {})
            ]
        },
        st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
        st.sampled_from(["x", "y"]),
    ),
)
_terms = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from([HOST, ZONE]), "labelSelector": _selectors},
    optional={
        "namespaces": st.lists(st.sampled_from([*NAMESPACES]), max_size=2),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"of": "us"}}]),
    },
)
_spreads = st.fixed_dictionaries(
    {
        "topologyKey": st.sampled_from([HOST, ZONE]),
        "labelSelector": _selectors,
        "maxSkew": st.integers(1, 2),
        "whenUnsatisfiable": st.just("DoNotSchedule"),
    },
    optional={"minDomains": st.integers(1, 4), "matchLabelKeys": st.just(["tier"])},
)
_ports = st.lists(
    st.fixed_dictionaries(
        {"hostPort": st.sampled_from([80, 81])},
        optional={
            "hostIP": st.sampled_from(["0.0.0.0", "10.0.0.1", "10.0.0.2"]),
            "protocol": st.sampled_from(["TCP", "UDP"]),
        },
    ),
    max_size=1,
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@st.composite
def _pods(draw: st.DrawFn, name: str, node: str) -> Obj:
    some = st.lists(_terms, max_size=2)
    body = pod(name, **({"nodeName": node} if node else {}))
    body["metadata"]["namespace"] = draw(st.sampled_from([*NAMESPACES]))
    body["metadata"] |= {"uid": name, "labels": draw(_labels)}
    body["spec"]["containers"][0]["ports"] = draw(_ports)
    body["spec"]["affinity"] = {
        "podAffinity": {REQUIRED: draw(st.lists(_terms, max_size=2)) if not node else []},
        "podAntiAffinity": {REQUIRED: draw(some)},
    }
    if not node:
        body["spec"]["topologySpreadConstraints"] = draw(st.lists(_spreads, max_size=2))
    elif draw(st.booleans()):
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return body


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[dict[str, dict[str, str]], list[Obj], Obj]:
    nodes = {
        name: {HOST: name} | draw(st.sampled_from([{ZONE: "x"}, {ZONE: "y"}, {}])) for name in NODES
    }
    homes = draw(st.lists(st.sampled_from(NODES), max_size=5))
    others = [draw(_pods(f"o{n}", home)) for n, home in enumerate(homes)]
    return nodes, others, draw(_pods("p", ""))


@settings(max_examples=75, deadline=None)
@given(_worlds())
def test_the_rules_keep_a_pod_from_the_nodes_that_a_plain_reading_rules_out(
    world: tuple[dict[str, dict[str, str]], list[Obj], Obj],
) -> None:
    nodes, others, body = world
    hosts = Hosts()
    for name, labels in nodes.items():
        hosts.set_node(NodeFacts(name, labels))
    for name, labels in NAMESPACES.items():
        hosts.residents.set_namespace(name, labels)
    for each in others:
        found = read_pod(each)
        hosts.place(found, found.node)
    mine: Pod = read_pod(body)
    rules = find_rules(mine, hosts)
    fits = {n for n, facts in hosts.facts.items() if rules is None or not rules.find_misfit(facts)}
    assert fits == {name for name in nodes if _fits(body, others, nodes, name)}


def _fits(body: Obj, others: list[Obj], nodes: dict[str, dict[str, str]], name: str) -> bool:
    return (
        _ports_free(body, [o for o in others if o["spec"]["nodeName"] == name])
        and _company(body, others, nodes, name)
        and not any(_shuns(o, body, nodes, name) for o in others)
        and all(
            _even(body, c, others, nodes, name) for c in body["spec"]["topologySpreadConstraints"]
        )
    )


def _ports_free(body: Obj, others: list[Obj]) -> bool:
    taken = [p for o in others for p in o["spec"]["containers"][0]["ports"]]
    for want in body["spec"]["containers"][0]["ports"]:
        for held in taken:
            same = want["hostPort"] == held["hostPort"]
            same = same and want.get("protocol", "TCP") == held.get("protocol", "TCP")
            addresses = {want.get("hostIP", "0.0.0.0"), held.get("hostIP", "0.0.0.0")}
            if same and (len(addresses) == 1 or "0.0.0.0" in addresses):
                return False
    return True


def _company(body: Obj, others: list[Obj], nodes: dict[str, dict[str, str]], name: str) -> bool:
    seeks = body["spec"]["affinity"]["podAffinity"][REQUIRED]
    shuns = body["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
    for term in shuns:
        if any(_meant(term, body, o) and _near(term, o, nodes, name) for o in others):
            return False
    if not seeks:
        return True
    if any(term["topologyKey"] not in nodes[name] for term in seeks):
        return False
    all_meant = [o for o in others if all(_meant(t, body, o) for t in seeks)]
    counted = [
        o for o in all_meant if any(t["topologyKey"] in nodes[o["spec"]["nodeName"]] for t in seeks)
    ]
    if not counted:
        return all(_meant(t, body, body) for t in seeks)
    return all(any(_near(t, o, nodes, name) for o in all_meant) for t in seeks)


def _shuns(other: Obj, body: Obj, nodes: dict[str, dict[str, str]], name: str) -> bool:
    terms = other["spec"]["affinity"]["podAntiAffinity"][REQUIRED]
    return any(_meant(t, other, body) and _near(t, other, nodes, name) for t in terms)


def _even(
    body: Obj, constraint: Obj, others: list[Obj], nodes: dict[str, dict[str, str]], name: str
) -> bool:
    key = constraint["topologyKey"]
    if key not in nodes[name]:
        return False
    keys = [c["topologyKey"] for c in body["spec"]["topologySpreadConstraints"]]
    counts: dict[str, int] = {}
    for node, labels in nodes.items():
        if all(k in labels for k in keys):
            here = [o for o in others if o["spec"]["nodeName"] == node]
            counts[labels[key]] = counts.get(labels[key], 0) + sum(
                _spreads_with(o, constraint, body) for o in here
            )
    least = 0 if len(counts) < constraint.get("minDomains", 1) else min(counts.values(), default=0)
    own = _selects(_narrowed(constraint, body), body["metadata"]["labels"])
    return bool(counts.get(nodes[name][key], 0) + own - least <= constraint["maxSkew"])


def _spreads_with(other: Obj, constraint: Obj, body: Obj) -> bool:
    selector = _narrowed(constraint, body)
    if selector is not None and not any(selector.values()):
        return False
    same = other["metadata"]["namespace"] == body["metadata"]["namespace"]
    going = "deletionTimestamp" in other["metadata"]
    return same and not going and _selects(selector, other["metadata"]["labels"])


def _narrowed(constraint: Obj, body: Obj) -> Obj | None:
    selector: Obj | None = constraint["labelSelector"]
    labels = body["metadata"]["labels"]
    kept = {k: labels[k] for k in constraint.get("matchLabelKeys", []) if k in labels}
    if selector is None or not kept:
        return selector
    more = [{"key": k, "operator": "In", "values": [v]} for k, v in kept.items()]
    return selector | {"matchExpressions": [*selector.get("matchExpressions", []), *more]}


def _near(term: Obj, other: Obj, nodes: dict[str, dict[str, str]], name: str) -> bool:
    key, there = term["topologyKey"], nodes[other["spec"]["nodeName"]]
    return key in there and nodes[name].get(key) == there[key]


def _meant(term: Obj, owner: Obj, other: Obj) -> bool:
    namespace = other["metadata"]["namespace"]
    named = term.get("namespaces") or []
    selector = term.get("namespaceSelector")
    if not named and selector is None:
        named = [owner["metadata"]["namespace"]]
    among = namespace in named or (
        selector is not None and _selects(selector, NAMESPACES[namespace])
    )
    return among and _selects(term["labelSelector"], other["metadata"]["labels"])


def _selects(selector: Obj | None, labels: dict[str, str]) -> bool:
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in selector.get("matchLabels", {}).items()):
        return False
    for part in selector.get("matchExpressions", []):
        value = labels.get(part["key"])
        match part["operator"]:
            case "In":
                fits = value in part["values"]
            case "NotIn":
                fits = value not in part["values"]
            case "Exists":
                fits = value is not None
            case _:
                fits = value is None
        if not fits:
            return False
    return True
