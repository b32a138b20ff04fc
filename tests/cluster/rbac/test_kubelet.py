"""Rights of the kubelet of a node on claims, by the role of the chart."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj, at
from hack.cluster.api import Api
from hack.cluster.chart import kubelet_rights
from hack.cluster.controlplane import node_user
from hack.cluster.installation import apply, path
from sim.processes import wait_for


def may(api: Api, node: str, verb: str, *, subresource: str = "") -> bool:
    """True if the kubelet of a node may do that to a claim of which its node knows nothing."""
    user = node_user(node)
    what = {"group": "resource.k8s.io", "resource": "resourceclaims", "subresource": subresource}
    review: Obj = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user.name,
            "groups": list(user.groups),
            "resourceAttributes": {**what, "verb": verb, "namespace": "default", "name": "asked"},
        },
    }
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(at(api.request("POST", reviews, body=review), "status", "allowed"))


def test_a_kubelet_gets_a_claim_of_which_the_node_authorizer_has_not_heard(admin: Api) -> None:
    wait_for("role of kubelets", lambda: may(admin, "plain", "get"))
    objects = kubelet_rights()
    for each in objects:
        admin.request("DELETE", path(each))
    wait_for("end of the role", lambda: not may(admin, "plain", "get"))
    for each in objects:
        apply(admin, each)
    wait_for("role of kubelets", lambda: may(admin, "plain", "get"))


@pytest.mark.parametrize(
    ("verb", "subresource"),
    [(verb, "") for verb in ("list", "watch", "create", "update", "patch", "delete")]
    + [(verb, "status") for verb in ("get", "update", "patch")]
    + [("associated-node:patch", "driver"), ("patch", "binding")],
)
def test_a_kubelet_does_nothing_else_to_claims(admin: Api, verb: str, subresource: str) -> None:
    assert not may(admin, "plain", verb, subresource=subresource)
