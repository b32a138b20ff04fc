"""Claims as no usual client writes them: they hold up nobody, and what is wrong is named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster.api import Api, collection
from sim.processes import wait_for
from tests.cluster.claims.bodies import (
    Serve,
    claim_body,
    exactly,
    spread_for,
)
from tests.cluster.harness.pods import pod
from tests.cluster.harness.workload import SLEEPING


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
