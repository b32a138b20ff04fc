"""Selectors of claims: what Kubernetes adds to CEL, what it alone has, and what costs too much."""

from __future__ import annotations

import pytest

from hack.cluster.api import Api
from sim.processes import wait_for
from tests.cluster.claims.bodies import (
    Serve,
    claim_body,
    exactly,
)
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING


def test_selectors_with_what_kubernetes_adds_to_cel_are_bound(serve: Serve) -> None:
    expressions = [
        (
            "device.attributes['mig.dra.dev'].transformMap(k, v, k == 'profile', v)"
            " == {'profile': '2g.10gb'}"
        ),
        "[2, 1].sortBy(n, n)[0] == 1 && [1, 2].indexOf(2) == 1 && 1 < 1.5",
        "!format.uuid().validate(device.attributes['mig.dra.dev'].parentUUID.substring(4)).hasValue()",
    ]
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    (result,) = serve("cel", exactly("r", "mig.dra.dev", selectors=selectors))
    assert "-mig-2g10gb-" in result["device"]


@pytest.mark.parametrize(
    ("name", "expression", "told"),
    [
        ("sum", "[duration('1s')].sum() == duration('1s')", "sum() of durations is not supported"),
        ("hidden", "[dyn(optional.of(1))].isSorted()", "optional in a list"),
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
