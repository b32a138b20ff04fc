"""Pods of which kube-scheduler says where it is about to bind them, which is no news mostly."""

from __future__ import annotations

import pytest

from dra.common.resources import PODS, Obj
from tests.controller.helpers.objects import allocated, claim, cluster, pod, versioned
from tests.controller.helpers.stored import Stored

THERE = {"nominatedNodeName": "a"}


@pytest.mark.parametrize(
    ("nodes", "then", "is_looked_at"),
    [
        ("a", {"status": THERE}, False),
        ("a", {"status": {"nominatedNodeName": "b"}}, True),
        ("-", {"status": THERE}, True),
        ("a-", {"status": THERE}, True),
        ("a", {"status": {**THERE, "phase": "Running"}}, True),
        ("a", {"status": THERE, "spec": {"nodeName": "a"}}, True),
        ("a", {"status": THERE, "metadata": {"labels": {"a": "b"}}}, True),
    ],
)
def test_a_pod_is_looked_at_unless_it_is_said_to_go_where_it_was_allocated(
    nodes: str, then: Obj, *, is_looked_at: bool
) -> None:
    known, trim = cluster("a", "b"), Stored(PODS)
    # A letter for each claim: the node that it is allocated to, if it is.
    claims = [f"c{number}" for number, _ in enumerate(nodes)]
    for name, node in zip(claims, nodes, strict=True):
        body = claim(name)
        known.set_claim(versioned(allocated(body, node, "gpu-0") if node != "-" else body))
    before = versioned(pod("p", *claims))
    known.set_pod(trim(before))
    known.take_effects()
    after = versioned({**before, **{key: {**before.get(key, {}), **then[key]} for key in then}})
    known.set_pod(trim(after))
    assert (("default", "p") in known.take_effects().pods) is is_looked_at
    assert known.pods["default", "p"].nominated == then["status"]["nominatedNodeName"]
