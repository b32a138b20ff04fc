"""Pods of a megabyte, with and without claims: little of them is kept, and nothing compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from controller.cluster.decoder import remembering
from dra.common.cache import decoded_weight
from dra.common.resources import (
    PODS,
    Obj,
    Resource,
)
from dra.kube.reflector import Store
from dra.pods.pods import read_pod
from dra.pods.stored import (
    MOST_CLAIMS,
    MOST_PORTS,
    MOST_RESOURCES,
    MOST_TERMS,
    MOST_VOLUMES,
    POD_BYTES,
)
from hack.bench.objects import as_stored
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, versioned
from tests.controller.helpers.stored import Stored

MANY = 1500
KIB = 1024
NAME = "name-of-the-object"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def _each(form: Callable[[int], Any]) -> list[Any]:
    return [form(n) for n in range(MANY)]


def _node_term(n: int) -> Obj:
    return {"matchExpressions": [{"key": f"{NAME}-{n}", "operator": "Exists"}]}


def _pod_term(n: int) -> Obj:
    return {"topologyKey": f"{NAME}-{n}", "labelSelector": {}}


def _shunning() -> Obj:
    return {"affinity": {"podAntiAffinity": {REQUIRED: _each(_pod_term)}}}


SPECS: dict[str, Callable[[], Obj]] = {
    "node affinity": lambda: {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": _each(_node_term)}}}
    },
    "preferred nodes": lambda: {
        "affinity": {
            "nodeAffinity": {PREFERRED: _each(lambda n: {"weight": 1, "preference": _node_term(n)})}
        }
    },
    "affinity": lambda: {"affinity": {"podAffinity": {REQUIRED: _each(_pod_term)}}},
    "anti-affinity": _shunning,
    "spread": lambda: {
        "topologySpreadConstraints": _each(
            lambda n: {**_pod_term(n), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
        )
    },
    "tolerations": lambda: {
        "tolerations": _each(lambda n: {"key": f"{NAME}-{n}", "operator": "Exists"})
    },
    "node selector": lambda: {"nodeSelector": {f"{NAME}-{n}": "x" * 60 for n in range(MANY)}},
    "volumes": lambda: {
        "volumes": _each(
            lambda n: {"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"{NAME}-{n}"}}
        )
    },
    "gates": lambda: {"schedulingGates": _each(lambda n: {"name": f"{NAME}/{n}"})},
    "containers": lambda: {"containers": _each(lambda n: {"name": f"{NAME}-{n}", "image": "i"})},
    "resources": lambda: {
        "containers": [
            {"name": "main", "resources": {"requests": {f"{NAME}/{n}": "0" for n in range(MANY)}}}
        ]
    },
    "overhead": lambda: {"overhead": {f"{NAME}/{n}": "1" for n in range(MANY)}},
    "claims": lambda: {
        "resourceClaims": _each(lambda n: {"name": f"{NAME}-{n}", "resourceClaimName": "p"})
    },
}

METADATA: dict[str, Callable[[], Obj]] = {
    "labels": lambda: {"labels": {f"{NAME}-{n}": "x" * 60 for n in range(MANY)}},
    "owners": lambda: {"ownerReferences": _each(lambda n: {"kind": "K", "uid": f"{NAME}-{n}"})},
    "long owner": lambda: {
        "ownerReferences": [{"kind": "K", "uid": NAME * MANY * 4, "controller": True}]
    },
    "annotations": lambda: {
        "annotations": {"scheduling.k8s.io/group-name": NAME, "a": NAME * MANY}
    },
}

SHAPES = {
    **{name: (form, METADATA["annotations"]) for name, form in SPECS.items()},
    **{name: (dict[str, Any], form) for name, form in METADATA.items()},
}


def _large_pod(what: str, *claims: str) -> Obj:
    spec, metadata = SHAPES[what]
    body = pod(NAME, *claims)
    body["spec"] |= spec()
    body["metadata"] |= metadata()
    return body


def _kept(resource: Resource, body: Obj) -> int:
    """Bytes that the mirror of a resource keeps of an object, in memory, roughly."""
    whole = msgspec.json.decode(msgspec.json.encode(as_stored(resource, body, 1)))
    store = Store(remembering(resource))
    (change,) = store.put(Stored(resource)(whole))
    assert change.new is not None
    held = store.get(NAME, "default")
    return max(decoded_weight(msgspec.json.encode(obj)) for obj in (change.new, held))


@pytest.mark.parametrize("claims", [("p",), ()], ids=["with a claim", "without"])
@pytest.mark.parametrize("what", SHAPES)
def test_little_is_kept_of_large_pods(what: str, claims: tuple[str, ...]) -> None:
    assert _kept(PODS, _large_pod(what, *claims)) < 32 * KIB


@pytest.mark.parametrize("what", [*(name for name in SPECS if name != "gates"), "labels"])
def test_a_pod_that_is_too_large_is_told_and_others_are_served(what: str) -> None:
    bench = Bench("node-a")
    for name in (NAME, "p", "beside"):
        bench.claim(claim(name))
    body = Stored(PODS)(bench.api.put(PODS, _large_pod(what, "p")))
    bench.cluster.set_pod(body)
    bench.pod(pod("beside", "beside"))
    bench.run()
    assert bench.recorder.reasons(NAME) == ["UnsupportedRequest"]
    (message,) = [m for _, about, _, m in bench.recorder.events if about == NAME]
    assert "the pod is too large" in message
    assert bench.devices("p") == []
    assert bench.devices("beside")


@pytest.mark.parametrize("what", ["anti-affinity", "labels", "resources", "containers"])
def test_what_a_large_pod_takes_of_its_node_counts(what: str) -> None:
    body = versioned(_large_pod(what))
    body["spec"]["nodeName"] = "node-a"
    body["spec"]["overhead"] = {"cpu": "1500m"}
    body["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {"memory": "3Gi"}}}]
    trimmed = Stored(PODS)(body)
    needs, whole = read_pod(trimmed).needs, read_pod(body).needs
    for name in ("cpu", "memory", "pods"):
        assert needs.requests[name] == whole.requests[name]
    assert read_pod(trimmed).node == "node-a"
    assert not needs.company.anti_affinity


def test_pods_with_much_to_say_are_read_whole() -> None:
    asked = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    tolerations = [{"key": f"taint-{n}", "operator": "Exists"} for n in range(40)]
    among = {"key": "kubernetes.io/hostname", "operator": "NotIn"}
    names = [f"node-{n:04}.example.com" for n in range(1000)]
    terms = [{"matchExpressions": [{**among, "values": names}]}]
    body = versioned(
        pod(
            "p",
            "c",
            containers=[{"name": f"c{n}", "resources": asked} for n in range(40)],
            tolerations=tolerations,
            affinity={
                "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}},
                "podAntiAffinity": {REQUIRED: [_pod_term(n) for n in range(20)]},
            },
        )
    )
    body["metadata"]["labels"] = {f"example.com/label-{n}": "value" for n in range(60)}
    found, whole = read_pod(Stored(PODS)(body)), read_pod(body)
    assert not found.unread
    assert found.needs.affinity_terms == whole.needs.affinity_terms
    assert found.labels == whole.labels
    assert len(found.needs.company.anti_affinity) == 20
    assert found.needs.tolerations == whole.needs.tolerations


def test_limits_are_on_what_is_kept() -> None:
    """A term more is too many, and so is one more of whatever is counted."""
    half = MOST_TERMS // 2
    fits = versioned(pod("p", tolerations=[{"operator": "Exists", "key": "k" * 20}] * half * 2))
    assert not read_pod(Stored(PODS)(_claiming(fits))).unread
    fits["spec"]["tolerations"].append({"operator": "Exists"})
    assert f"{MOST_TERMS} are read" in read_pod(Stored(PODS)(_claiming(fits))).unread
    amounts = {f"example.com/{'x' * 20}-{n}": "1" for n in range(MOST_RESOURCES)}
    asks = versioned(pod("q", overhead=amounts, containers=[]))
    assert not read_pod(Stored(PODS)(asks)).unread
    amounts["example.com/more"] = "1"
    assert f"{MOST_RESOURCES} are read" in read_pod(Stored(PODS)(asks)).unread
    claims = versioned(pod("s", *(f"c{n}" for n in range(MOST_CLAIMS))))
    assert not read_pod(Stored(PODS)(claims)).unread
    claims["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "more"})
    assert f"{MOST_CLAIMS} are read" in read_pod(Stored(PODS)(claims)).unread
    ports = [{"containerPort": n, "hostPort": n} for n in range(1, MOST_PORTS + 1)]
    takes = versioned(pod("t", containers=[{"name": "main", "ports": ports}]))
    assert not read_pod(Stored(PODS)(takes)).unread
    ports.append({"containerPort": 8000, "hostPort": 8000})
    assert f"{MOST_PORTS} are read" in read_pod(Stored(PODS)(takes)).unread
    volumes = [{"name": f"v{n}", "ephemeral": {}} for n in range(MOST_VOLUMES)]
    stores = _claiming(versioned(pod("u", volumes=volumes)))
    assert not read_pod(Stored(PODS)(stores)).unread
    volumes.append({"name": "more", "ephemeral": {}})
    assert f"{MOST_VOLUMES} are read" in read_pod(Stored(PODS)(stores)).unread
    wide = versioned(pod("r", nodeSelector={"k": "x" * POD_BYTES}))
    assert "KiB" in read_pod(Stored(PODS)(_claiming(wide))).unread


def _claiming(body: Obj) -> Obj:
    body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    return body
