"""Where a pod fits is judged as kube-scheduler judges it, and said in a few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.common.resources import Obj
from dra.pods.nodefit import MisfitReason, NodeFacts, find_misfit, read_node
from dra.pods.pods import Pod, PodNeeds, effective_request, read_needs, read_pod
from dra.pods.residents import Hosts
from dra.pods.selectors import matches_selector, matches_terms
from tests.controller.helpers.objects import node, pod, versioned


def misfit(*args: Any, **fields: Any) -> str:
    found = find_misfit(*args, **fields)
    return found.message if found is not None else ""


def container(cpu: str = "0", memory: str = "0", **fields: Any) -> Obj:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **fields}


def needs(**spec: Any) -> PodNeeds:
    return read_needs({"containers": [container(cpu="100m")], **spec})


def test_containers_add_up() -> None:
    spec = {"containers": [container("250m", "1Gi"), container("1.5", "512Mi")]}
    assert effective_request(spec) == {"cpu": 1750, "memory": 3 << 29, "pods": 1}


def test_an_init_container_counts_where_it_is_the_larger() -> None:
    spec = {
        "containers": [container("500m", "1Gi")],
        "initContainers": [container("2", "100Mi"), container("1", "1")],
    }
    assert effective_request(spec) == {"cpu": 2000, "memory": 1 << 30, "pods": 1}


def test_sidecars_run_beside_what_starts_after_them() -> None:
    sidecar = container("1", "0", restartPolicy="Always")
    spec = {
        "containers": [container("1")],
        "initContainers": [container("3"), sidecar, container("3")],
    }
    assert effective_request(spec)["cpu"] == 4000
    assert effective_request({**spec, "initContainers": [sidecar]})["cpu"] == 2000


def test_overhead_comes_on_top_and_pod_level_requests_replace_the_sum() -> None:
    spec = {
        "containers": [container("1", "1Gi")],
        "resources": {"requests": {"cpu": "3"}},
        "overhead": {"cpu": "100m"},
    }
    assert effective_request(spec) == {"cpu": 3100, "memory": 1 << 30, "pods": 1}


def test_a_limit_without_a_request_is_a_request() -> None:
    spec = {"containers": [{"resources": {"limits": {"cpu": "2", "example.com/x": "3"}}}]}
    assert effective_request(spec) == {"cpu": 2000, "example.com/x": 3, "pods": 1}


def test_fractions_are_rounded_up() -> None:
    spec = {"containers": [container("0.0001", "1500m")]}
    assert effective_request(spec) == {"cpu": 1, "memory": 2, "pods": 1}


def facts(**spec: Any) -> NodeFacts:
    return read_node(node("node-a", labels={"zone": "one", "size": "7"}, **spec))


@pytest.mark.parametrize("key", ["not-ready", "unreachable"])
def test_a_node_that_is_not_ready_takes_only_who_tolerates_it(key: str) -> None:
    """The taints decide, not the condition: kube-scheduler does not read it."""
    taint = {"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}
    obj = node("node-a", taints=[taint])
    obj["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    found = find_misfit(needs(), read_node(obj), {})
    assert found is not None
    assert found.reason is MisfitReason.NOT_READY
    tolerant = needs(tolerations=[{"key": taint["key"], "operator": "Exists"}])
    assert misfit(tolerant, read_node(obj), {}) == ""
    del obj["spec"]["taints"]
    assert misfit(needs(), read_node(obj), {}) == ""


def test_a_cordoned_node_takes_only_who_tolerates_it() -> None:
    cordoned = facts(unschedulable=True)
    assert misfit(needs(), cordoned, {}) == "node unschedulable"
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert misfit(needs(tolerations=[toleration]), cordoned, {}) == ""


TAINT = {"key": "gpu", "value": "mig", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "gpu", "value": "mig"},
        {"key": "gpu", "operator": "Equal", "value": "mig", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
        {"operator": "Exists"},
        {"operator": "Exists", "effect": "NoSchedule"},
    ],
)
def test_a_toleration_admits_to_a_tainted_node(toleration: Obj) -> None:
    assert misfit(needs(tolerations=[toleration]), facts(taints=[TAINT]), {}) == ""


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "gpu", "value": "other"},
        {"key": "gpu"},
        {"key": "other", "operator": "Exists"},
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
        {"key": "gpu", "operator": "Gt", "value": "mig"},
    ],
)
def test_a_toleration_of_something_else_does_not(toleration: Obj) -> None:
    found = misfit(needs(tolerations=[toleration]), facts(taints=[TAINT]), {})
    assert found == "untolerated taint gpu=mig:NoSchedule"


def test_node_selector_and_required_affinity_must_both_match() -> None:
    assert misfit(needs(nodeSelector={"zone": "one"}), facts(), {}) == ""
    found = misfit(needs(nodeSelector={"zone": "two"}), facts(), {})
    assert found == "nodeSelector zone=two does not match"
    required = "requiredDuringSchedulingIgnoredDuringExecution"

    def affinity(*values: str) -> Obj:
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": list(values)}]}
        return {"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}}

    assert misfit(needs(affinity=affinity("one", "two")), facts(), {}) == ""
    found = misfit(needs(affinity=affinity("two")), facts(), {})
    assert found == "node affinity does not match"


@pytest.mark.parametrize(
    ("operator", "key", "values", "matches"),
    [
        ("In", "zone", ["one"], True),
        ("In", "zone", ["two"], False),
        ("In", "none", ["one"], False),
        ("NotIn", "zone", ["two"], True),
        ("NotIn", "zone", ["one"], False),
        ("NotIn", "none", ["one"], True),
        ("Exists", "zone", [], True),
        ("Exists", "none", [], False),
        ("DoesNotExist", "none", [], True),
        ("DoesNotExist", "zone", [], False),
        ("Gt", "size", ["6"], True),
        ("Gt", "size", ["7"], False),
        ("Lt", "size", ["8"], True),
        ("Lt", "zone", ["8"], False),
        ("Gt", "none", ["1"], False),
        ("Near", "zone", ["one"], False),
    ],
)
def test_every_operator_of_a_node_selector(
    operator: str, key: str, values: list[str], *, matches: bool
) -> None:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}
    assert matches_terms([term], {"zone": "one", "size": "7"}, "node-a") is matches


def test_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    other = {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    assert matches_terms([other, by_name], {}, "node-a")
    assert not matches_terms([{**by_name, **other}], {}, "node-a")
    assert not matches_terms([{}], {"zone": "one"}, "node-a")
    assert not matches_terms([], {}, "node-a")
    unknown = {"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["node-a"]}]}
    assert not matches_terms([unknown], {}, "node-a")
    assert matches_selector(None, {}, "node-a")
    assert not matches_selector({"nodeSelectorTerms": [by_name]}, {}, "node-b")


def test_what_is_short_is_named() -> None:
    wanted = read_needs({"containers": [container("3", "40Gi")]})
    assert misfit(wanted, facts(), {}) == "insufficient memory"
    assert misfit(wanted, facts(), {"cpu": 5001}) == "insufficient cpu, memory"
    assert misfit(needs(), facts(), {"pods": 110}) == "insufficient pods"


def test_an_extended_resource_that_a_class_serves_need_not_be_on_the_node() -> None:
    name = "nvidia.com/mig-1g.5gb"
    wanted = read_needs({"containers": [{"resources": {"limits": {name: "1"}}}]})
    assert misfit(wanted, facts(), {}) == f"insufficient {name}"
    assert misfit(wanted, facts(), {}, delegated={name}) == ""
    advertised = NodeFacts("node-a", allocatable={"pods": 1, name: 1})
    assert misfit(wanted, advertised, {name: 1}, delegated={name}) == f"insufficient {name}"
    implicit = "deviceclass.resource.kubernetes.io/mig-1g.5gb"
    assert misfit(PodNeeds(requests={implicit: 1}), facts(), {}) == ""


def _asking(name: str, requests: dict[str, int]) -> Pod:
    return replace(read_pod(versioned(pod(name))), needs=PodNeeds(requests=requests))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["p1", "p2", "p3"]),
            st.sampled_from(["", "node-a", "node-b"]),
            st.dictionaries(st.sampled_from(["cpu", "pods"]), st.integers(0, 5)),
        ),
        max_size=30,
    )
)
def test_what_nodes_are_charged_is_the_sum_of_their_pods(
    moves: list[tuple[str, str, dict[str, int]]],
) -> None:
    hosts = Hosts()
    where: dict[str, tuple[str, dict[str, int]]] = {}
    for name, target, requests in moves:
        before = where.get(name)
        freed = hosts.place(_asking(name, requests), target)
        where[name] = (target, requests)
        left = before is not None and before[0] != "" and before != (target, requests)
        assert freed == (before[0] if left and before is not None else "")
        for host in ("node-a", "node-b"):
            held = [r for n, r in where.values() if n == host]
            used = hosts.used(host)
            assert {k: used.get(k, 0) for k in ("cpu", "pods")} == {
                k: sum(r.get(k, 0) for r in held) for k in ("cpu", "pods")
            }


def test_a_preference_is_no_taint_that_blocks() -> None:
    soft = {**TAINT, "effect": "PreferNoSchedule"}
    assert misfit(needs(), facts(taints=[soft]), {}) == ""
    hard = {**TAINT, "effect": "NoExecute"}
    assert "NoExecute" in misfit(needs(), facts(taints=[hard]), {})
