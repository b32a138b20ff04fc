"""What the controller allocates for each feature of a claim, a real scheduler binds."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.binaries import Binaries
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.plane.controlplane import ControlPlane
from hack.cluster.waiting import wait_for
from tests.cluster.conftest import USERS
from tests.cluster.harness.daemons import Driver
from tests.cluster.harness.ground import make_namespace, serve_mignodes
from tests.cluster.harness.workload import SLEEPING

NODES = ("feature-a", "feature-b")
PARENT = "mig.dra.dev/parentUUID"
AT_LEAST_12GI = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
TOLERATION = {"key": "example.com/hot", "operator": "Exists", "effect": "NoExecute"}


def exactly(name: str, device_class: str, **more: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def first_available(name: str, *subrequests: Obj) -> Obj:
    return {"name": name, "firstAvailable": list(subrequests)}


def spread_for(*requests: str) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": "spread"},
    }
    found: Obj = {"opaque": {"driver": "mig.dra.dev", "parameters": parameters}}
    return {**found, "requests": list(requests)}


@pytest.fixture(scope="module")
def served(binaries: Binaries, root: Path) -> Iterator[Api]:
    """A control plane of its own with two nodes without kubelet, each with two A100."""
    home = root / "features"
    home.mkdir()
    with ControlPlane(binaries, home, users=USERS) as control_plane:
        yield from _with_driver(control_plane, root)


def _with_driver(control_plane: ControlPlane, root: Path) -> Iterator[Api]:
    api = control_plane.api
    make_namespace(api)
    serve_mignodes(api)
    home = root / "f"
    home.mkdir()
    driver = Driver(control_plane, home)
    for name in NODES:
        add_fake_node(api, name, labels={"test/features": "yes"})
        driver.add_node(
            name,
            gpus=("A100-SXM4-40GB", "A100-SXM4-40GB"),
            kubelet_root=home / f"{name}-k",
            cdi_root=home / f"{name}-cdi",
        )
    with driver:
        wait_for(
            "devices of every node and their classes",
            lambda: (
                all(api.find("MigNode", n) for n in NODES)
                and api.find("DeviceClass", "mig-min-10gb") is not None
            ),
            context=driver.tails,
        )
        yield api


Serve = Callable[..., list[Obj]]


@pytest.fixture
def serve(served: Api) -> Iterator[Serve]:
    """Makes a claim and a pod for it, waits for the binding, and returns the results."""
    api = served
    made: list[str] = []

    def act(
        name: str, *requests: Obj, names: tuple[str, ...] = ("gpu",), **devices: Any
    ) -> list[Obj]:
        spec = {"devices": {"requests": list(requests), **devices}}
        api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": spec,
            }
        )
        made.append(name)
        claims = {n: {"resourceClaimName": name} for n in names}
        api.create(pod(name, SLEEPING, claims=claims, nodeSelector={"test/features": "yes"}))

        def seen() -> str:
            events = api.list("Event", fieldSelector=f"involvedObject.name={name}")
            return "\n".join(str(e["message"]) for e in events)

        node = wait_for(
            f"node of pod {name}",
            lambda: api.get("Pod", name)["spec"].get("nodeName", ""),
            timeout=30.0,
            context=seen,
        )
        status = api.get("ResourceClaim", name)["status"]
        (term,) = status["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        assert term["matchFields"][0]["values"] == [node]
        assert [r["name"] for r in status["reservedFor"]] == [name]
        results: list[Obj] = status["allocation"]["devices"]["results"]
        return results

    yield act
    for name in made:
        api.delete("Pod", name, grace=0)
    for name in made:
        api.delete("ResourceClaim", name)
    wait_for("claims to go", lambda: not any(api.find("ResourceClaim", n) for n in made))


def gpus(results: list[Obj]) -> list[str]:
    return [r["device"].partition("-mig-")[0] for r in results]


def test_several_devices_and_requests_are_bound(serve: Serve) -> None:
    results = serve(
        "several", exactly("one", "mig-2g.10gb", count=2), exactly("two", "mig-3g.20gb")
    )
    assert sorted(r["request"] for r in results) == ["one", "one", "two"]


def test_a_claim_that_a_pod_has_under_two_names_is_bound_with_what_it_asks_for(
    serve: Serve,
) -> None:
    assert len(serve("twice", exactly("one", "mig-1g.5gb"), names=("one", "other"))) == 1


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


def test_devices_of_one_gpu_are_bound(serve: Serve) -> None:
    names = ("mig-4g.20gb", "mig-2g.10gb", "mig-1g.5gb")
    requests = [exactly(f"r{n}", name) for n, name in enumerate(names)]
    results = serve("same", *requests, constraints=[{"matchAttribute": PARENT}])
    assert len(results) == 3
    assert len(set(gpus(results))) == 1


def test_pairs_each_on_one_gpu_are_bound(serve: Serve) -> None:
    requests = [exactly(n, "mig-4g.20gb") for n in ("a", "b")]
    requests += [exactly(n, "mig-3g.20gb") for n in ("c", "d")]
    pairs = [{"matchAttribute": PARENT, "requests": pair} for pair in (["a", "d"], ["b", "c"])]
    results = serve("pairs", *requests, constraints=pairs)
    on = {r["request"]: r["device"].partition("-mig-")[0] for r in results}
    assert on["a"] == on["d"] != on["b"] == on["c"]


def test_devices_of_different_gpus_are_bound(served: Api, serve: Serve) -> None:
    try:
        results = serve(
            "apart",
            exactly("r", "mig-1g.5gb", count=2),
            constraints=[{"distinctAttribute": PARENT}],
        )
    except ApiError as error:
        pytest.skip(f"this API server has no distinctAttribute: {error}")
    constraints = served.get("ResourceClaim", "apart")["spec"]["devices"]["constraints"]
    if "distinctAttribute" not in constraints[0]:
        pytest.skip("this API server drops distinctAttribute")
    assert sorted(gpus(results)) == ["gpu-0", "gpu-1"]


def test_a_chosen_alternative_with_its_configuration_is_bound(served: Api, serve: Serve) -> None:
    results = serve(
        "either",
        first_available(
            "r",
            {"name": "big", "deviceClassName": "mig-7g.40gb", "count": 3},
            {"name": "small", "deviceClassName": "mig-1g.5gb"},
        ),
        config=[spread_for("r/small"), spread_for("r/big"), spread_for("r")],
    )
    assert [r["request"] for r in results] == ["r/small"]
    config = served.get("ResourceClaim", "either")["status"]["allocation"]["devices"]["config"]
    assert [c["requests"] for c in config] == [["r/small"], ["r"]]


def test_all_slices_of_a_profile_are_bound(serve: Serve) -> None:
    results = serve("all", exactly("r", "mig-3g.20gb", allocationMode="All"))
    assert sorted(r["device"] for r in results) == [
        f"gpu-{gpu}-mig-3g20gb-9-{start}" for gpu in (0, 1) for start in (0, 4)
    ]


def test_tolerations_are_in_the_result_that_is_bound(served: Api, serve: Serve) -> None:
    (result,) = serve("tolerant", exactly("r", "mig-1g.5gb", tolerations=[TOLERATION]))
    (request,) = served.get("ResourceClaim", "tolerant")["spec"]["devices"]["requests"]
    kept = request["exactly"].get("tolerations", [])
    assert result.get("tolerations", []) == kept


def test_what_only_looks_is_bound_beside_what_holds(served: Api, serve: Serve) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    served.patch("Namespace", "default", {"metadata": {"labels": labels}})
    serve("holds", exactly("r", "mig-7g.40gb", allocationMode="All"))
    look = exactly("look", "gpu.dra.dev", adminAccess=True, allocationMode="All")
    for name in ("looks", "looks-too"):
        results = serve(name, look)
        assert [(r["device"], r["adminAccess"]) for r in results] == [
            ("gpu-0", True),
            ("gpu-1", True),
        ]


def test_a_pod_says_why_it_waits_until_it_does_not(served: Api, serve: Serve) -> None:
    held = [exactly("r", "mig-7g.40gb", count=2)]
    for name in ("first", "second"):
        serve(name, *held)
    served.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "waits", "namespace": "default"},
            "spec": {"devices": {"requests": held}},
        }
    )
    served.create(pod("waits", SLEEPING, claims={"gpu": {"resourceClaimName": "waits"}}))

    def told(status: str) -> Obj | None:
        conditions = served.get("Pod", "waits")["status"].get("conditions", [])
        found = [c for c in conditions if c["type"] == "mig.dra.dev/ClaimsAllocated"]
        return found[0] if found and found[0]["status"] == status else None

    assert "default/first" in wait_for("reason", lambda: told("False"))["message"]
    served.delete("Pod", "first", grace=0)
    served.delete("ResourceClaim", "first")
    wait_for("end of the wait", lambda: told("True"))
    served.delete("Pod", "waits", grace=0)
    served.delete("ResourceClaim", "waits")


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
    request = urllib.request.Request(
        f"{served._server}{collection('ResourceClaim')}",
        data=json.dumps(made, indent=2).encode(),
        headers={**served.headers, "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=served._certificate)
    urllib.request.urlopen(request, context=context).close()
    served.create(pod("blanks", SLEEPING, claims={"gpu": {"resourceClaimName": "blanks"}}))

    def told() -> list[str]:
        events = served.list("Event", fieldSelector="involvedObject.name=blanks")
        return [e["message"] for e in events if e["reason"] == "AllocationRefused"]

    (message, *_) = wait_for("event", told)
    assert "stored with white space" in message
    assert "create the claim anew" in message
    served.delete("Pod", "blanks", grace=0)
    served.delete("ResourceClaim", "blanks")


def test_the_smallest_slice_with_enough_memory_is_bound(serve: Serve) -> None:
    selector = [{"cel": {"expression": AT_LEAST_12GI}}]
    (result,) = serve("memory", exactly("r", "mig.dra.dev", selectors=selector))
    assert "-mig-3g20gb-" in result["device"]
    (result,) = serve("round", exactly("r", "mig-min-10gb"))
    assert "-mig-1g10gb-" in result["device"]


def test_selectors_with_what_kubernetes_adds_to_cel_are_bound(serve: Serve) -> None:
    expressions = [
        (
            "device.attributes['mig.dra.dev'].transformMap(k, v, k == 'profile', v)"
            " == {'profile': '2g.10gb'}"
        ),
        "[2, 1].sortBy(n, n)[0] == 1 && [1, 2].indexOf(2) == 1 && 1 < 1.5",
        "!format.uuid().validate(device.attributes['mig.dra.dev'].parentUUID.substring(4)).hasValue()",
    ]
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    (result,) = serve("cel", exactly("r", "mig.dra.dev", selectors=selectors))
    assert "-mig-2g10gb-" in result["device"]


@pytest.mark.parametrize(
    ("name", "expression", "told"),
    [
        ("sum", "[duration('1s')].sum() == duration('1s')", "sum() of durations is not supported"),
        ("hidden", "[dyn(optional.of(1))].isSorted()", "optional in a list"),
    ],
)
def test_a_selector_that_only_kubernetes_supports_is_named(
    served: Api, name: str, expression: str, told: str
) -> None:
    selectors = [{"cel": {"expression": expression}}]
    request = exactly("r", "mig.dra.dev", selectors=selectors)
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    served.create(body)
    served.create(pod(name, SLEEPING, claims={"gpu": {"resourceClaimName": name}}))
    message = wait_for(
        "the reason",
        lambda: next(
            (
                str(e["message"])
                for e in served.list("Event", fieldSelector=f"involvedObject.name={name}")
                if e["reason"] == "InvalidSelector"
            ),
            "",
        ),
    )
    assert told in message
    assert "request 'r'" in message
    served.delete("Pod", name, grace=0)
    served.delete("ResourceClaim", name)


GIGABYTE = f"'{'a' * 1000}'.replace('a', '{'b' * 1000}').replace('b', '{'c' * 1000}').size() > 0"
"""The server admits it, and it makes a text of 1 GB."""


def test_a_selector_that_wants_a_gigabyte_stops_nobody(served: Api, serve: Serve) -> None:
    names = [f"gigabyte-{number}" for number in range(3)]
    for number, name in enumerate(names):
        selectors = [{"cel": {"expression": f"{GIGABYTE} && {number} == {number}"}}]
        spec = {"devices": {"requests": [exactly("r", "mig-1g.5gb", selectors=selectors)]}}
        served.create(_claim(name, spec))
        served.create(pod(name, SLEEPING, claims={"gpu": {"resourceClaimName": name}}))
    assert serve("beside", exactly("r", "mig-1g.5gb"))

    def told() -> set[str]:
        events = served.list("Event")
        return {e["involvedObject"]["name"] for e in events if e["reason"] == "SelectorTooCostly"}

    wait_for("the reasons", lambda: told() >= {*names})
    for name in names:
        served.delete("Pod", name, grace=0)
        served.delete("ResourceClaim", name)


def test_a_finalizer_of_kube_scheduler_that_a_user_sets_changes_nothing(
    served: Api, serve: Serve
) -> None:
    body = _claim("protected", {"devices": {"requests": [exactly("r", "mig-1g.5gb")]}})
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


def _claim(name: str, spec: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
