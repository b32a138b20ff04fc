"""Whether a node suits a pod."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dra.common.resources import Obj
from sim.scheduler.nodefit import NodeView, matches_selector, rejection, requests, tolerates


def _container(cpu: str, **more: str) -> Obj:
    return {"resources": {"requests": {"cpu": cpu}}} | more


def _node(**labels: str) -> Obj:
    return {
        "metadata": {"name": "node-a", "labels": labels},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "2"}},
    }


def _term(key: str, operator: str, *values: str, kind: str = "matchExpressions") -> Obj:
    return {kind: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [_container("500m"), _container("1")]}, "1.5"),
        ({"containers": [_container("1")], "initContainers": [_container("3")]}, "3"),
        ({"containers": [_container("2")], "initContainers": [_container("1")]}, "2"),
        (
            {
                "containers": [_container("1")],
                "initContainers": [_container("1", restartPolicy="Always"), _container("3")],
            },
            "4",
        ),
        ({"containers": [_container("1")], "overhead": {"cpu": "250m"}}, "1.25"),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, "2"),
    ],
    ids=[
        "containers add up",
        "init counts by its peak",
        "containers outweigh init",
        "sidecars run beside init",
        "overhead is added",
        "limits stand in for requests",
    ],
)
def test_what_a_pod_asks_for(spec: Obj, cpu: str) -> None:
    assert requests({"spec": spec}) == {"cpu": Fraction(cpu), "pods": Fraction(1)}


@pytest.mark.parametrize(
    ("term", "holds"),
    [
        (_term("gpu", "In", "a100", "h100"), True),
        (_term("gpu", "In", "h100"), False),
        (_term("gpu", "NotIn", "h100"), True),
        (_term("gpu", "NotIn", "a100"), False),
        (_term("other", "NotIn", "x"), True),
        (_term("gpu", "Exists"), True),
        (_term("other", "Exists"), False),
        (_term("other", "DoesNotExist"), True),
        (_term("count", "Gt", "7"), True),
        (_term("count", "Gt", "8"), False),
        (_term("count", "Lt", "9"), True),
        (_term("gpu", "Gt", "7"), False),
        (_term("metadata.name", "In", "node-a", kind="matchFields"), True),
        (_term("metadata.name", "In", "node-b", kind="matchFields"), False),
        ({}, False),
    ],
    ids=str,
)
def test_node_selector_terms(term: Obj, holds: bool) -> None:  # noqa: FBT001 - a parameter
    node = _node(gpu="a100", count="8")
    assert matches_selector({"nodeSelectorTerms": [term]}, node) is holds
    assert matches_selector({"nodeSelectorTerms": [_term("no", "Exists"), term]}, node) is holds


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
    ids=str,
)
def test_tolerations(toleration: Obj, tolerated: bool) -> None:  # noqa: FBT001 - a parameter
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoSchedule"}) is tolerated


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        ({}, ("", "")),
        ({"cpu": Fraction("1.5")}, ("NodeResourcesFit", "Insufficient cpu")),
        ({"pods": Fraction(2)}, ("NodeResourcesFit", "Too many pods")),
    ],
    ids=["room", "cpu", "pods"],
)
def test_free_resources(used: dict[str, Fraction], reason: tuple[str, str]) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [_container("1")]}}
    assert rejection(pod, NodeView(_node(), used)) == reason


def test_a_resource_that_the_node_does_not_have_is_insufficient() -> None:
    container = {"resources": {"limits": {"example.com/fpga": "1"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    assert rejection(pod, NodeView(_node()))[1] == "Insufficient example.com/fpga"
