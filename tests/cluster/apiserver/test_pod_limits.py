"""Pods that ask by limits, on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.chart import render
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.installation import apply
from sim.processes import wait_for
from tests.dra.limits.limitcases import CASES, Case, S, expected, pod_of, seen

POLICY, APART = "policy", "apart"
SETUP = Setup(scheduling=False, controllers=("serviceaccount",))


def created(api: Api, pod: Obj, namespace: str) -> Obj:
    """The pod that the API server makes of one, without keeping it."""
    pod["metadata"]["namespace"] = namespace
    where = f"{collection('Pod', namespace=namespace)}?dryRun=All"
    return api.request("POST", where, body=pod)


def rewrites(api: Api) -> bool:
    """True once a pod that asks by limits is rewritten."""
    with contextlib.suppress(ApiError):
        return bool(seen(created(api, pod_of(CASES[0]), POLICY))[0])
    return False


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
        make_namespace(running.api, APART, {"mig.dra.dev/limits": "no"})
        for each in render():
            if each["metadata"]["name"].endswith("pod-limits"):
                apply(running.api, each)
        wait_for("policy", lambda: rewrites(running.api))
        yield running


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_policy_makes_claims_of_limits(plane: ControlPlane, case: Case) -> None:
    assert seen(created(plane.api, pod_of(case), POLICY)) == expected(case)


def test_other_namespaces_are_left_alone(plane: ControlPlane) -> None:
    pod = pod_of(CASES[0])
    kept = (*seen(pod)[:2], {"a": {part: {S: "1"} for part in ("limits", "requests")}})
    assert seen(created(plane.api, pod, APART)) == kept
