"""Names of claims that kube-controller-manager drops from a pod's status are put back."""

from __future__ import annotations

from controller import times
from dra.common.resources import PODS, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod


def named(*entries: str) -> Obj:
    """A pod with two templates, whose status names the claims of these entries."""
    body = pod("p")
    body["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimTemplateName": "t"} for name in ("gpu", "nic")
    ]
    statuses = [{"name": name, "resourceClaimName": f"p-{name}"} for name in entries]
    return {**body, "status": {**body.get("status", {}), "resourceClaimStatuses": statuses}}


def names(made: Bench) -> list[str]:
    statuses = made.api.get(PODS, "p")["status"]["resourceClaimStatuses"]
    return sorted(each["resourceClaimName"] for each in statuses)


def site() -> Bench:
    made = Bench("node-a")
    for name in ("p-gpu", "p-nic"):
        made.claim(claim(name))
    return made


def test_what_was_named_by_turns_is_named_together() -> None:
    """kubernetes#138407: each of two names takes the place of the other, without an end."""
    made = site()
    made.pod(named("gpu"))
    made.run()
    assert names(made) == ["p-gpu"]
    made.pod(named("nic"))
    made.run()
    made.run(seconds=times.CLAIMS_NAMED_AGAIN[0])
    assert names(made) == ["p-gpu", "p-nic"]
