"""Selectors of claims: what Kubernetes adds to CEL, what it alone has, and what costs too much."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster.api import Api, collection
from sim.processes import wait_for
from tests.cluster.claims.bodies import Serve, claim_body, exactly, spread_for
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING


def test_selectors_with_what_kubernetes_adds_to_cel_are_bound(serve: Serve) -> None:
    expressions = [
        "device.attributes['mig.dra.dev'].exists(k, v, k == 'profile' && v == '2g.10gb')",
        "[2, 1].sortBy(n, n)[0] == 1 && 1 < 1.5",
    ]
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    (result,) = serve("cel", exactly("r", "mig.dra.dev", selectors=selectors))
    assert "-mig-2g10gb-" in result["device"]


@pytest.mark.parametrize(
    ("name", "expression", "told"),
    [
        ("sum", "[1, 2].sum() == 3", "this driver has no sum, which kube-scheduler has"),
        ("address", "ip('::1').isLoopback()", "this driver has no ip, which kube-scheduler has"),
    ],
)
def test_a_selector_that_only_kubernetes_supports_is_named(
    served: Api, name: str, expression: str, told: str
) -> None:
    selectors = [{"cel": {"expression": expression}}]
    request = exactly("r", "mig.dra.dev", selectors=selectors)
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    served.create(body)
    served.create(pod(name, SLEEPING, claims={"gpu": {"resourceClaimName": name}}))
    message = wait_for(
        "the reason",
        lambda: next(
            (
                str(e["message"])
                for e in served.list("Event", fieldSelector=f"involvedObject.name={name}")
                if e["reason"] == "InvalidSelector"
            ),
            "",
        ),
    )
    assert told in message
    assert "request 'r'" in message
    served.delete("Pod", name, grace=0)
    served.delete("ResourceClaim", name)


GIGABYTE = f"'{'a' * 1000}'.replace('a', '{'b' * 1000}').replace('b', '{'c' * 1000}').size() > 0"
"""The server admits it, and it makes a text of 1 GB."""


def test_a_selector_that_wants_a_gigabyte_stops_nobody(served: Api, serve: Serve) -> None:
    names = [f"gigabyte-{number}" for number in range(3)]
    for number, name in enumerate(names):
        selectors = [{"cel": {"expression": f"{GIGABYTE} && {number} == {number}"}}]
        spec = {"devices": {"requests": [exactly("r", "mig-1g.5gb", selectors=selectors)]}}
        served.create(claim_body(name, spec))
        served.create(pod(name, SLEEPING, claims={"gpu": {"resourceClaimName": name}}))
    assert serve("beside", exactly("r", "mig-1g.5gb"))

    def told() -> set[str]:
        events = served.list("Event")
        return {e["involvedObject"]["name"] for e in events if e["reason"] == "SelectorTooCostly"}

    wait_for("the reasons", lambda: told() >= {*names})
    for name in names:
        served.delete("Pod", name, grace=0)
        served.delete("ResourceClaim", name)


# -- claims as no usual client writes them: they hold up nobody, and what is wrong is named


@pytest.fixture
def deep() -> Iterator[list[Any]]:
    """A list in a list and so on, deeper than Python reads JSON unless told to."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(16_000)
    nested: list[Any] = []
    for _ in range(1500):
        nested = [nested]
    yield nested
    sys.setrecursionlimit(limit)


def test_parameters_that_nest_deeply_hold_up_nobody(deep: list[Any], serve: Serve) -> None:
    opaque = {"driver": "other.example.com", "parameters": {"deep": deep}}
    assert serve("deep", exactly("one", "mig-1g.5gb"), config=[{"opaque": opaque}])


def test_parameters_that_were_stored_with_white_space_are_named(served: Api) -> None:
    """No client that encodes JSON does that: written out by hand."""
    config = spread_for("r")
    spec = {"devices": {"requests": [exactly("r", "mig-1g.5gb")], "config": [config]}}
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "blanks", "namespace": "default"},
        "spec": spec,
    }
    served.request("POST", collection("ResourceClaim"), body=json.dumps(made, indent=2))
    served.create(pod("blanks", SLEEPING, claims={"gpu": {"resourceClaimName": "blanks"}}))

    def told() -> list[str]:
        events = served.list("Event", fieldSelector="involvedObject.name=blanks")
        return [e["message"] for e in events if e["reason"] == "AllocationRefused"]

    (message, *_) = wait_for("event", told)
    assert "stored with white space" in message
    assert "create the claim anew" in message
    served.delete("Pod", "blanks", grace=0)
    served.delete("ResourceClaim", "blanks")


def test_a_finalizer_of_kube_scheduler_that_a_user_sets_changes_nothing(
    served: Api, serve: Serve
) -> None:
    body = claim_body("protected", {"devices": {"requests": [exactly("r", "mig-1g.5gb")]}})
    body["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    served.create(body)
    selector = {"test/features": "yes"}
    claims = {"gpu": {"resourceClaimName": "protected"}}
    served.create(pod("protected", SLEEPING, claims=claims, nodeSelector=selector))
    wait_for("binding", lambda: served.get("Pod", "protected")["spec"].get("nodeName", ""))
    claim = served.get("ResourceClaim", "protected")
    managers = [
        entry["manager"]
        for entry in claim["metadata"]["managedFields"]
        if "f:allocation" in entry["fieldsV1"].get("f:status", {})
    ]
    assert managers == ["mig.dra.dev/controller"], "it is ours by what the server says"
    assert serve("meanwhile", exactly("r", "mig-1g.5gb"))
    again = served.get("ResourceClaim", "protected")
    assert again["status"]["allocation"] == claim["status"]["allocation"]
    assert "mig.dra.dev/allocation" in again["metadata"]["finalizers"]
    served.delete("Pod", "protected", grace=0)
    served.delete("ResourceClaim", "protected")
    wait_for("end of the claim", lambda: served.find("ResourceClaim", "protected") is None)
