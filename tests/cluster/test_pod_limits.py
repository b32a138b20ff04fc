"""Pods that ask by limits, on a real API server: policy and webhook make the same of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.driver.chart import render
from hack.cluster.driver.installation import apply
from hack.cluster.plane.controlplane import ControlPlane, Setup
from hack.cluster.waiting import wait_for
from tests.dra.limitcases import CASES, Case, expected, pod_of, seen

POLICY = "policy"
SETUP = Setup(scheduling=False, controllers=("serviceaccount",))


def created(api: Api, pod: Obj, namespace: str) -> Obj:
    """What the API server makes of a pod, without keeping it."""
    pod["metadata"]["namespace"] = namespace
    where = f"{collection('Pod', namespace=namespace)}?dryRun=All"
    return api.request("POST", where, body=pod)


def make_namespace(api: Api, name: str, labels: Obj) -> None:
    api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )

    def has_account() -> bool:
        with contextlib.suppress(ApiError):
            return bool(api.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        return False

    wait_for("account of pods", has_account)


@pytest.fixture(scope="module")
def plane(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    home = root / "pl"
    home.mkdir()
    with ControlPlane(binaries, home, setup=SETUP) as running:
        make_namespace(running.api, POLICY, {"mig.dra.dev/limits": "claims"})
        make_namespace(running.api, "apart", {"mig.dra.dev/limits": "no"})
        for each in render():
            if each["metadata"]["name"].endswith("pod-limits"):
                apply(running.api, each)
        first = CASES[0]
        wait_for("policy", lambda: seen(created(running.api, pod_of(first), POLICY))[0])
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_policy_makes_claims_of_limits(plane: ControlPlane, case: Case) -> None:
    assert seen(created(plane.api, pod_of(case), POLICY)) == expected(case)
