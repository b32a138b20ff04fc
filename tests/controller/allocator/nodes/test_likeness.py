"""Pods that are alike, for which the same nodes lack what another driver has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, device_class, pod, request, versioned


@pytest.fixture
def bench() -> Bench:
    bench = Bench("node-a")
    for name in ("tapes", "disks"):
        bench.cluster.set_class(device_class(name, f"device.driver == '{name}.example.com'"))
    return bench


def template(
    bench: Bench,
    name: str,
    change: Callable[[Obj], object] = lambda body: None,
    *,
    theirs: str = "tapes",
    count: int = 1,
    ours: str = "mig-1g.5gb",
    namespace: str = "default",
) -> str:
    """Template of a pod without owner that wants a slice and devices of another driver."""
    asked = {"": request("r", ours), "other-": request("r", theirs, count=count)}
    for prefix, wanted in asked.items():
        asked_for = versioned(claim(f"{prefix}{name}", wanted))
        asked_for["metadata"]["namespace"] = namespace
        bench.cluster.set_claim(asked_for)
    body = versioned(pod(name, name, f"other-{name}"))
    body["metadata"]["namespace"] = namespace
    change(body)
    bench.cluster.set_pod(body)
    return bench.cluster.pod_index.template(bench.cluster.pods[namespace, name])


@pytest.mark.parametrize(
    "other",
    [
        {"theirs": "disks"},
        {"count": 2},
        {"ours": "mig-3g.20gb"},
        {"namespace": "team-b"},
        {"change": lambda body: body["spec"].update(nodeSelector={"zone": "a"})},
        {"change": lambda body: body["spec"].update(priority=5)},
    ],
)
def test_those_that_ask_for_something_else_are_not(bench: Bench, other: dict[str, Obj]) -> None:
    assert template(bench, "a") != template(bench, "b", **other)  # type: ignore[arg-type]


def test_a_pod_that_names_the_owner_of_another_namespaces_pods_is_not_like_these(
    bench: Bench,
) -> None:
    found = set()
    for namespace in ("default", "other"):
        body = pod("p")
        owner = {"kind": "ReplicaSet", "uid": "set", "controller": True}
        body["metadata"] |= {"namespace": namespace, "ownerReferences": [owner]}
        bench.cluster.set_pod(versioned(body))
        found.add(bench.cluster.pod_index.template(bench.cluster.pods[namespace, "p"]))
    assert len(found) == 2


def test_it_is_known_once_all_claims_are(bench: Bench) -> None:
    body = versioned(pod("a", "a", "other-a"))
    bench.cluster.set_pod(body)
    bench.cluster.set_claim(versioned(claim("a")))
    assert (
        bench.cluster.pod_index.template(bench.cluster.pods["default", "a"])
        == body["metadata"]["uid"]
    )
    assert template(bench, "a") == template(bench, "b")
