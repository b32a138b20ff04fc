"""Comparisons of a pod's terms with other pods: bounded, whatever users write into their pods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from controller.cluster.pods import MOST_WATCHED, Watchers
from dra.common.resources import Obj
from dra.pods import selectors as labelselector
from dra.pods import volumes as known
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import Pod, read_pod
from dra.pods.residents import MOST_SHUNNING, Hosts, Residents
from dra.pods.rules import VolumeFit, find_rules
from dra.pods.selectors import indexed, matches_terms
from dra.pods.volumes import Volumes, read_storage_class, read_volume, read_volume_claim
from tests.controller.helpers.needs import HOST, affine, selector
from tests.controller.helpers.needs import spread as spread_over
from tests.controller.helpers.objects import pod, versioned
from tests.controller.helpers.volumes import storage_class, uses, volume, volume_claim


@dataclass
class Count:
    """Calls of a function."""

    calls: int = 0


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Requirements that were compared with labels of pods."""
    return counted(monkeypatch, labelselector, "holds")


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> Count:
    count, function = Count(), getattr(module, name)

    def call(*args: Any, **fields: Any) -> Any:
        count.calls += 1
        return function(*args, **fields)

    monkeypatch.setattr(module, name, call)
    return count


def made(
    name: str, labels: dict[str, str] | None = None, *, namespace: str = "default", **spec: Any
) -> Pod:
    body = versioned(pod(name, "c", **spec))
    body["metadata"] |= {"labels": labels or {}, "namespace": namespace}
    return read_pod(body)


def terms(number: int, labels: Obj, **term: Any) -> Obj:
    """Required anti-affinity in so many equal terms."""
    shuns = affine(HOST, labels, anti=True, **term)
    for listed in shuns["podAntiAffinity"].values():
        listed *= number  # noqa: PLW2901 - in place
    return shuns


def lacking(number: int) -> Obj:
    """A selector that all but one of so many requirements let pass."""
    passed = [{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(number - 1)]
    return {"matchExpressions": [*passed, {"key": "none", "operator": "Exists"}]}


def test_terms_of_node_affinity_are_read_alike_however_many_values_they_have() -> None:
    for number in (1, 8, 9, 200):
        among = {"key": "k", "operator": "In", "values": [f"v{n}" for n in range(number)][::-1]}
        affinity = {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [among]}]
            }
        }
        found = made("p", affinity={"nodeAffinity": affinity}).needs.affinity_terms
        assert found is not None
        assert matches_terms(found, {"k": f"v{number - 1}"}, "")
        assert not matches_terms(found, {"k": f"v{number}"}, "")
        assert indexed(indexed(among)) == indexed(among)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    """40 of them, compared with a thousand nodes, took seconds."""
    term = {"matchExpressions": [{"key": "k", "operator": "Lt", "values": ["9" * 4000]}]}
    assert not matches_terms([term], {"k": "1"}, "")


def test_what_waits_for_pods_is_compared_with_each_in_bounds(compared: Count) -> None:
    """49 far terms each of 1,000 waiting pods cost 71 ms for each event of a pod of anybody."""
    watchers = Watchers(Residents())
    for n in range(100):
        shuns = terms(49, selector(app=f"a{n}"), namespaceSelector={})
        watchers.change(None, made(f"w{n}", namespace="hostile", affinity=shuns))
    near = made("near", affinity=affine(HOST, selector(app="x")))
    far = made(
        "far", namespace="theirs", affinity=affine(HOST, selector(app="x"), namespaceSelector={})
    )
    for each in (near, far):
        watchers.change(None, each)
    comes = made("o", {"app": "x"})
    assert [*watchers.of_company(comes)] == [near.key, far.key]
    assert compared.calls <= MOST_WATCHED
    compared.calls = 0
    assert [*watchers.of_company(made("o", {"app": "a0"}), comes)] == [
        near.key,
        ("hostile", "w0"),
        far.key,
    ]
    assert compared.calls <= MOST_WATCHED


def test_who_shuns_others_in_many_ways_is_read_in_bounds(compared: Count) -> None:
    """2,000 terms were read, and each may have nearly 200 requirements."""
    there = Residents()
    for n in range(60):
        shuns = terms(1, lacking(190), namespaceSelector={})
        there.place(made(f"o{n}", namespace="hostile", affinity=shuns), "a")
    there.place(made("theirs", affinity=affine(HOST, selector(app="x"), anti=True)), "b")
    (found,) = there.shunning(made("p", {"app": "x"}))
    assert found.nodes == {"b": 1}
    assert compared.calls <= MOST_SHUNNING


ROWS: dict[str, Callable[[], Obj]] = {
    "one term": lambda: {"affinity": terms(1, selector(app="x"))},
    "terms": lambda: {"affinity": terms(5, selector(app="x"))},
    "requirements": lambda: {"affinity": terms(2, lacking(20))},
    "requirements of namespaces": lambda: {
        "affinity": terms(2, selector(app="x"), namespaceSelector=lacking(20))
    },
    "all namespaces": lambda: {"affinity": terms(3, selector(app="x"), namespaceSelector={})},
    "named namespaces": lambda: {"affinity": terms(3, selector(app="x"), namespaces=["one", "no"])},
    "sought": lambda: {"affinity": affine(HOST, selector(app="x"))},
    "spread": lambda: {"topologySpreadConstraints": spread_over(HOST, lacking(20)) * 3},
}


@pytest.mark.parametrize("row", ROWS)
def test_comparisons_are_known_beforehand(row: str, compared: Count) -> None:
    """What is beyond is left to kube-scheduler before any of it is compared."""
    hosts = Hosts()
    for n in range(6):
        hosts.set_node(NodeFacts(f"n{n}", {HOST: f"n{n}"}))
    for n in range(60):
        labels = {"app": "x", "n": str(n % 20)}
        namespace = ("default", "one", "two")[n % 3]
        hosts.place(made(f"o{n}", labels, namespace=namespace), f"n{n % 6}")
    asks = made("p", {"app": "x"}, **ROWS[row]())
    rules = find_rules(asks, hosts)
    assert rules is not None
    for facts in hosts.facts.values():
        rules.find_misfit(facts)
    assert 0 < compared.calls <= hosts.residents.breadth(asks)


@pytest.mark.parametrize("parts", [0, 20])
def test_claims_of_volumes_are_compared_with_volumes_in_bounds(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 claims beside 5,000 volumes took 450 ms, with selectors of 80 parts 830."""
    most = 600
    monkeypatch.setattr("dra.pods.rules.MOST_VOLUMES_COMPARED", most)
    compared = counted(monkeypatch, known, "suits")
    selects: dict[str, Any] = {"selector": lacking(parts)} if parts else {}
    volumes = Volumes()
    volumes.set_class(read_storage_class(storage_class("local", makes=False)))
    for n in range(100):
        volumes.set_volume(read_volume(volume(f"v{n}", class_name="local", host=f"n{n}")))
    names = [f"c{n}" for n in range(8)]
    for size, name in enumerate(names):
        body = volume_claim(name, class_name="local", size=f"{size + 1}Mi", **selects)
        volumes.set_claim(read_volume_claim(body))
    asks = made("p", volumes=uses(*names))
    fit = VolumeFit(asks, volumes, Residents())
    found = [fit.find_misfit(NodeFacts(f"n{n}", {HOST: f"n{n}"})) for n in range(3)]
    # One claim has the only volume and the second none; with selectors kube-scheduler tells.
    assert found == [None] * 3 if parts else all(found)
    assert compared.calls * (3 + parts) <= most
