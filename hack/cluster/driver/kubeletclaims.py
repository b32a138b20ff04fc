"""The chart's role by which kubelets read claims, without the rest of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dra.common.resources import Obj, at
from hack.cluster.api import Api
from hack.cluster.driver.chart import render
from hack.cluster.driver.installation import apply, path
from hack.cluster.plane.credentials import node_user
from hack.cluster.waiting import wait_for


@contextlib.contextmanager
def kubelets_read_claims(api: Api) -> Iterator[None]:
    """The kubelet of any node may read any claim inside the block."""
    objects = [
        each
        for each in render({"kubeletClaims": {"enabled": True}})
        if each["metadata"]["name"].endswith("-kubelet")
    ]
    for each in objects:
        apply(api, each)
    wait_for("role of kubelets", lambda: may(api, "any", "get"))
    yield
    for each in objects:
        api.request("DELETE", path(each))
    wait_for("end of the role", lambda: not may(api, "any", "get"))


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
