"""Requests that neither program has any need of, and may not make."""

from __future__ import annotations

import pytest

from hack.cluster.chart import NAMESPACE
from tests.cluster.harness.accounts import CONTROLLER
from tests.cluster.rbac.requests import (
    CLAIMS,
    MERGE,
    MIGNODES,
    PODS,
    refusal,
)

NOTHING_BUT = [
    ("GET", "/api/v1/secrets"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    ("GET", "/api/v1/configmaps"),
    ("POST", PODS),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{CONTROLLER}/token"),
    ("PATCH", "/api/v1/nodes/node-a"),
    ("DELETE", f"{CLAIMS}/x"),
    ("DELETE", f"{MIGNODES}/node-b"),
    ("DELETE", f"{PODS}/x"),
    ("POST", f"{PODS}/x/binding"),
]


@pytest.mark.parametrize("who", ["plugin", "controller"])
@pytest.mark.parametrize(("method", "where"), NOTHING_BUT)
def test_neither_can_do_what_it_has_no_need_of(
    who: str, method: str, where: str, request: pytest.FixtureRequest
) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    status, text = refusal(
        request.getfixturevalue(who),
        method,
        where,
        body=None if method == "GET" else body,
        content=MERGE if method == "PATCH" else "application/json",
    )
    assert status == 403
    assert "cannot " in text
