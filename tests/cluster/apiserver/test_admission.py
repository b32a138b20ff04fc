"""Admission policies on a real API server: pods that ask by limits, and configurations."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.chart import find, render
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.installation import apply, path
from sim.processes import wait_for
from tests.api.configurations import BAD, GOOD, SLICE
from tests.deploy.chart.charts import rendered_for
from tests.dra.limits.limitcases import CASES, Case, S, expected, pod_of, seen

POLICY, APART = "policy", "apart"
OF_LIMITS, OF_CONFIGURATION = "-pod-limits", "-configuration"
BESIDE_LIMITS = ("-limit-ranges", "-limit-templates")
DRIVER = "mig.dra.dev"
CONTROLLERS = ("serviceaccount", "validatingadmissionpolicy-status-controller")
SETUPS = {
    "1.36": Setup(scheduling=False, controllers=CONTROLLERS),
    "1.34": Setup(scheduling=False, controllers=CONTROLLERS, emulated="1.34"),
}


def created(api: Api, body: Obj, namespace: str) -> Obj:
    """The object that the API server makes of one, without keeping it."""
    body["metadata"]["namespace"] = namespace
    where = f"{collection(body.get('kind', 'Pod'), namespace=namespace)}?dryRun=All"
    return api.request("POST", where, body=body)


def rewrites(api: Api) -> bool:
    """True once a pod that asks by limits is rewritten."""
    with contextlib.suppress(ApiError):
        return bool(seen(created(api, pod_of(CASES[0]), POLICY))[0])
    return False


def refusal(api: Api, body: Obj) -> str:
    """Reason why an object is called invalid; empty if it is taken."""
    try:
        created(api, body, "default")
    except ApiError as error:
        if error.status != 422:
            raise
        return str(error)
    return ""


def make_namespace(api: Api, name: str, labels: Obj) -> None:
    api.create(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    )

    def has_account() -> bool:
        with contextlib.suppress(ApiError):
            return bool(api.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default"))
        return False

    wait_for("account of pods", has_account)


@pytest.fixture(scope="module", params=SETUPS)
def plane(binaries: Binaries, root: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    home = root / f"a{request.param}"
    home.mkdir()
    with (
        ControlPlane(binaries, home, setup=SETUPS[request.param]) as running,
        tempfile.TemporaryDirectory() as chart,
    ):
        make_namespace(running.api, POLICY, {"mig.dra.dev/limits": "claims"})
        make_namespace(running.api, APART, {"mig.dra.dev/limits": "no"})
        names = []
        for each in rendered_for(Path(chart), request.param):
            name = each["metadata"]["name"]
            if name.endswith((OF_LIMITS, OF_CONFIGURATION, *BESIDE_LIMITS)):
                apply(running.api, each)
                names.append(name)
        if any(name.endswith(OF_LIMITS) for name in names):
            wait_for("policy of limits", lambda: rewrites(running.api))
        bad = obj("ResourceClaim", BAD["no word"].parameters)
        wait_for("policy of configuration", lambda: refusal(running.api, bad))
        yield running


@pytest.mark.parametrize("plane", ["1.36"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_policy_makes_claims_of_limits(plane: ControlPlane, case: Case) -> None:
    assert seen(created(plane.api, pod_of(case), POLICY)) == expected(case)


def test_other_namespaces_are_left_alone(plane: ControlPlane) -> None:
    pod = pod_of(CASES[0])
    kept = (*seen(pod)[:2], {"a": {part: {S: "1"} for part in ("limits", "requests")}})
    assert seen(created(plane.api, pod, APART)) == kept


MEMORY, GPUS = "nvidia.com/gpumem", "nvidia.com/gpu"
LIMIT_RANGES: dict[str, tuple[Obj, Obj, str]] = {
    "a maximum is the default": ({"max": {S: "2"}}, {S: "1"}, S),
    "a default that hides the maximum": ({"max": {S: "2"}, "default": {S: "0"}}, {S: "3"}, S),
    "a default request": ({"defaultRequest": {S: "1"}, "default": {S: "1"}}, {S: "1"}, S),
    "a maximum of memory": ({"max": {MEMORY: "9000"}}, {GPUS: "1", MEMORY: "8000"}, MEMORY),
    "a maximum of GPUs": ({"max": {GPUS: "2"}}, {GPUS: "1", MEMORY: "8000"}, GPUS),
    "of init containers": ({"max": {S: "2"}}, {S: "1"}, S),
}


@contextlib.contextmanager
def limit_range(api: Api, **limits: Obj) -> Iterator[None]:
    where = f"/api/v1/namespaces/{POLICY}/limitranges"
    body = {"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **limits}]}}
    api.request("POST", where, body=body)
    yield
    api.request("DELETE", f"{where}/r")


@pytest.mark.parametrize("plane", ["1.36"], indirect=True)
@pytest.mark.parametrize("name", LIMIT_RANGES)
def test_a_limit_range_of_what_becomes_claims_is_refused_with_words(
    plane: ControlPlane, name: str
) -> None:
    """Its limits would be put back, so that the pod waits for ever, and its cap would not hold."""
    limits, asked, told = LIMIT_RANGES[name]
    by_container = {"i:a": asked, "b": {}} if name == "of init containers" else {"a": asked}
    pod = pod_of(Case("x", by_container))
    with limit_range(plane.api, **limits):

        def refused() -> str:
            try:
                created(plane.api, pod, POLICY)
            except ApiError as error:
                return str(error)
            return ""

        words = wait_for("effect of the LimitRange", refused)
        assert f"LimitRange of namespace {POLICY} limits {told}, which becomes claims" in words
    with limit_range(plane.api, max={"cpu": "4"}, default={"cpu": "1"}):
        wait_for("effect of the other", lambda: not refused())


@pytest.mark.parametrize("plane", ["1.36"], indirect=True)
def test_a_template_that_stands_for_limits_is_the_controllers_alone(plane: ControlPlane) -> None:
    api = plane.api
    stolen = obj("ResourceClaimTemplate")
    for name in ("mig-1g.5gb", "gpumem-8000", "mig-1g.5gb-node-spread"):
        stolen["metadata"] = {"name": f"nvidia.com-{name}"}
        with pytest.raises(ApiError, match="is made by the controller alone"):
            created(api, stolen, POLICY)
        created(api, stolen, APART)
    stolen["metadata"] = {"name": "mine"}
    created(api, stolen, POLICY)


KINDS = {
    "ResourceClaim": "spec.devices",
    "ResourceClaimTemplate": "spec.spec.devices",
    "DeviceClass": "spec",
}


def obj(kind: str, *parameters: Any, driver: str = DRIVER) -> Obj:
    config = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    request = {"name": "slice", "exactly": {"deviceClassName": "mig-1g.5gb"}}
    devices = {"requests": [request], "config": config}
    spec: dict[str, Obj] = {
        "DeviceClass": {"config": config},
        "ResourceClaim": {"devices": devices},
        "ResourceClaimTemplate": {"spec": {"devices": devices}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "tried"},
        "spec": spec[kind],
    }


@pytest.mark.parametrize("name", BAD)
def test_a_configuration_that_contradicts_its_type_is_refused(
    plane: ControlPlane, name: str
) -> None:
    """The same table as that of lint and the controller's condition (tests/api/test_config.py)."""
    bad = BAD[name]
    for kind, devices in KINDS.items():
        found = refusal(plane.api, obj(kind, SLICE, bad.parameters))
        assert bool(found) is bad.types, found
        if bad.types:
            steps = (f"{devices}.config[1].opaque.parameters", bad.admission_path)
            assert f"denied request: {'.'.join(filter(None, steps))}: " in found
            assert "must be " in found or "allowed are: " in found
        assert refusal(plane.api, obj(kind, bad.parameters, driver="gpu.nvidia.com")) == ""


@pytest.mark.parametrize("name", GOOD)
def test_a_good_configuration_is_taken(plane: ControlPlane, name: str) -> None:
    for kind in KINDS:
        assert refusal(plane.api, obj(kind, GOOD[name])) == ""
    assert refusal(plane.api, obj("ResourceClaim")) == ""
    claim = obj("ResourceClaim")
    del claim["spec"]["devices"]["config"]
    assert refusal(plane.api, claim) == ""


def test_the_largest_configurations_are_evaluated(plane: ControlPlane) -> None:
    """The API server evaluates a policy up to a cost: a good one stays far below."""
    full = GOOD["all that a slice may say"]
    bad = {**full, "shares": 1}
    for kind in KINDS:
        assert refusal(plane.api, obj(kind, *[full] * 32)) == ""
        assert "config[31].opaque.parameters.shares: unknown" in refusal(
            plane.api, obj(kind, *[full] * 31, bad)
        )
    every = refusal(plane.api, obj("ResourceClaim", *[bad] * 32))
    assert "config[0]" in every
    long = refusal(plane.api, obj("ResourceClaim", {**SLICE, "x" * 9000: 1}))
    assert "kubectl mig lint says why" in long
    # Beyond the cost the condition tells.
    many = {**SLICE, **{f"k{number}": 1 for number in range(900)}}
    refusal(plane.api, obj("ResourceClaim", *[many] * 32))


def test_what_is_there_already_can_be_labelled(plane: ControlPlane) -> None:
    """Of a class that is bad only a new configuration is refused."""
    api, merge = plane.api, "application/merge-patch+json"
    binding = find(render(), "ValidatingAdmissionPolicyBinding", OF_CONFIGURATION)
    bad = {**obj("DeviceClass", BAD["no word"].parameters), "metadata": {"name": "bad-before"}}
    where = f"{collection('DeviceClass')}/bad-before"
    api.request("DELETE", path(binding))
    wait_for("no policy", lambda: not refusal(api, bad))
    api.create(bad)
    apply(api, binding)
    wait_for("policy", lambda: refusal(api, obj("ResourceClaim", BAD["no word"].parameters)))
    api.request("PATCH", where, body={"metadata": {"labels": {"a": "b"}}}, content=merge)
    spec = {"spec": obj("DeviceClass", BAD["no version"].parameters)["spec"]}
    with pytest.raises(ApiError, match="kind and apiVersion must be MigDeviceConfig"):
        api.request("PATCH", where, body=spec, content=merge)
    api.request("DELETE", where)


def test_kubernetes_has_no_warnings_of_the_policy(plane: ControlPlane) -> None:
    """It checks the types of expressions once a policy is there."""
    policy = find(render(), "ValidatingAdmissionPolicy", OF_CONFIGURATION)
    status: Obj = wait_for(
        "checked policy", lambda: plane.api.request("GET", path(policy)).get("status")
    )
    assert status["typeChecking"] == {}


@pytest.mark.parametrize("plane", ["1.36"], indirect=True)
def test_where_kube_scheduler_allocates_pods_with_limits_get_the_gate_too(
    plane: ControlPlane,
) -> None:
    ours = {"name": f"{DRIVER}/allocation"}
    for each in render({"allocator": "scheduler"}):
        if each["metadata"]["name"].endswith(OF_LIMITS):
            apply(plane.api, each)

    def gates(body: Obj) -> object:
        return created(plane.api, body, POLICY)["spec"].get("schedulingGates")

    wait_for("policy with the gate", lambda: gates(pod_of(CASES[0])) == [ours])
    other = {"name": "other.example/gate"}
    for before, after in (([other], [other, ours]), ([ours], [ours]), ([ours, other], None)):
        body = pod_of(CASES[0])
        body["spec"]["schedulingGates"] = before
        assert gates(body) == (after or before)
    body = pod_of(CASES[0])
    body["spec"]["nodeName"] = "somewhere"
    assert gates(body) is None, "a pod with a node can have none"
    for case in CASES:
        found = created(plane.api, pod_of(case), POLICY)
        assert seen(found) == expected(case)
        assert bool(found["spec"].get("schedulingGates")) == bool(expected(case)[0])
