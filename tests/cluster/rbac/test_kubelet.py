"""Rights of the kubelet of a node on claims, by the role of the chart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hack.cluster.api import Api
from hack.cluster.installation import kubelets_read_claims, may


@pytest.fixture(scope="module", autouse=True)
def role(admin: Api) -> Iterator[None]:
    assert not may(admin, "plain", "get"), "the chart allows it without being asked"
    with kubelets_read_claims(admin):
        yield


def test_a_kubelet_gets_a_claim_of_which_the_node_authorizer_has_not_heard(admin: Api) -> None:
    assert may(admin, "plain", "get")


@pytest.mark.parametrize(
    ("verb", "subresource"),
    [(verb, "") for verb in ("list", "watch", "create", "update", "patch", "delete")]
    + [(verb, "status") for verb in ("get", "update", "patch")]
    + [("associated-node:patch", "driver"), ("patch", "binding")],
)
def test_a_kubelet_does_nothing_else_to_claims(admin: Api, verb: str, subresource: str) -> None:
    assert not may(admin, "plain", verb, subresource=subresource)
