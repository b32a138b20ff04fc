"""Who gets the controller's finalizer when it is created: the chart's MutatingAdmissionPolicy."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from sim.processes import wait_for

FINALIZER = "mig.dra.dev/allocation"
_NUMBERS = itertools.count()


def asks(device_class: str) -> Obj:
    return {"name": "r", "exactly": {"deviceClassName": device_class}}


def either(*classes: str) -> Obj:
    alternatives = [{"name": f"a{n}", "deviceClassName": c} for n, c in enumerate(classes)]
    return {"name": "r", "firstAvailable": alternatives}


def finalizers(api: Api, *requests: Obj, **metadata: Any) -> list[str]:
    """Those of a new claim with such requests."""
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"born-{next(_NUMBERS)}", **metadata},
        "spec": {"devices": {"requests": list(requests)}},
    }
    found: list[str] = api.create(body)["metadata"].get("finalizers", [])
    return found


@pytest.fixture
def guarded(admin: Api) -> Api:
    """The API, once the policy is in force."""
    wait_for("policy", partial(finalizers, admin, asks("mig-1g.5gb")))
    return admin


@pytest.mark.parametrize("request_", [asks("mig-1g.5gb"), either("other.dev", "mig-min-10gb")])
def test_a_claim_of_ours_has_it(guarded: Api, request_: Obj) -> None:
    assert finalizers(guarded, request_) == [FINALIZER]


def test_it_comes_to_what_is_there(guarded: Api) -> None:
    found = finalizers(guarded, asks("mig.dra.dev"), finalizers=["example.com/mine"])
    assert sorted(found) == ["example.com/mine", FINALIZER]
    assert finalizers(guarded, asks("gpu.dra.dev"), finalizers=[FINALIZER]) == [FINALIZER]


def test_a_claim_for_an_extended_resource_has_it_not(guarded: Api) -> None:
    made_by_scheduler = {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert finalizers(guarded, asks("mig-1g.5gb"), annotations=made_by_scheduler) == []
