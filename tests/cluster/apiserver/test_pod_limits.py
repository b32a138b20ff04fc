"""Pods that ask by limits, on a real API server: policy and webhook make the same of them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.chart import find, render
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.installation import apply
from sim.processes import wait_for
from tests.cluster.apiserver.test_webhook import VALUES, Webhook
from tests.deploy.chart.charts import rendered_before_policies
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


class Mutating(Webhook):
    """The program as the chart runs it for a Kubernetes without mutating policies."""

    def _reachable(self, objects: list[Obj]) -> list[Obj]:
        with tempfile.TemporaryDirectory() as directory:
            objects = rendered_before_policies(Path(directory), VALUES)
        for hook in find(objects, "MutatingWebhookConfiguration")["webhooks"]:
            hook["clientConfig"] = {"url": f"https://localhost:{self.port}/mutate"}
        return super()._reachable(objects)


@pytest.fixture(scope="module")
def hooked(binaries: Binaries, root: Path) -> Iterator[Mutating]:
    """The webhook behind an API server that is as that of Kubernetes 1.34."""
    home = root / "pw"
    home.mkdir()
    controllers = ("serviceaccount", "serviceaccount-token", "clusterrole-aggregation")
    setup = Setup(scheduling=False, controllers=controllers, emulated="1.34")
    with ControlPlane(binaries, home, setup=setup) as running:
        make_namespace(running.api, POLICY, {"mig.dra.dev/limits": "claims"})
        make_namespace(running.api, APART, {"mig.dra.dev/limits": "no"})
        made = Mutating(running, home)
        made.process.start()
        try:
            wait_for("webhook", lambda: rewrites(running.api), context=made.process.tail)
            yield made
        finally:
            made.process.stop()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_webhook_makes_the_same_of_them(hooked: Mutating, case: Case) -> None:
    assert seen(created(hooked.plane.api, pod_of(case), POLICY)) == expected(case)


def test_other_namespaces_are_left_alone(plane: ControlPlane, hooked: Mutating) -> None:
    pod = pod_of(CASES[0])
    kept = (*seen(pod)[:2], {"a": {part: {S: "1"} for part in ("limits", "requests")}})
    for api in (plane.api, hooked.plane.api):
        assert seen(created(api, pod_of(CASES[0]), APART)) == kept


def test_only_pods_that_ask_are_refused_while_the_webhook_is_away(hooked: Mutating) -> None:
    api = hooked.plane.api
    hooked.process.stop()
    with pytest.raises(ApiError, match="failed calling webhook"):
        created(api, pod_of(CASES[0]), POLICY)
    created(api, pod_of(Case("nothing", {"a": {"cpu": "1"}})), POLICY)
    created(api, pod_of(CASES[0]), APART)
    hooked.process.start()
    wait_for("webhook", lambda: rewrites(api), context=hooked.process.tail)
