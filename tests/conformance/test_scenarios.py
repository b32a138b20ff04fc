"""What a DRA driver owes kubelet, kube-scheduler and its users, one scenario a function.

Sources are files of Kubernetes 1.36 and its enhancement proposals (KEPs). Latencies are reported,
not asserted; each scenario has a limit of time.
"""

from __future__ import annotations

import socket

import grpc
import pytest

from api.kubelet.pluginregistration.v1 import api_pb2, api_pb2_grpc
from tests.conformance.site import Site

SERVICES = {"v1.DRAPlugin", "v1beta1.DRAPlugin"}
RETRY_SECONDS = 150
"""Kubelet repeats a failed Prepare after 60 to 90 s: ``completeWork`` in
pkg/kubelet/pod_workers.go."""


def limit(seconds: float) -> pytest.MarkDecorator:
    """A scenario's limit of time, without that of its node."""
    return pytest.mark.timeout(seconds, func_only=True)


@limit(30)
def test_registration_says_who_serves_what(site: Site) -> None:
    """A socket in the registry answers GetInfo within a second.

    Source: pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go, and
    ``ValidatePlugin`` in pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
    """
    registry = site.needs_kubelet().kubelet_root / "plugins_registry"
    answers = []
    for path in registry.glob("*.sock"):
        with grpc.insecure_channel(f"unix:{path}") as channel, site.timed("GetInfo"):
            stub = api_pb2_grpc.RegistrationStub(channel)
            answers.append(stub.GetInfo(api_pb2.InfoRequest(), timeout=1, wait_for_ready=True))
    (info,) = (each for each in answers if each.name == site.driver.name)
    assert info.type == "DRAPlugin"
    assert SERVICES & set(info.supported_versions), "kubelet knows none of its services"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(info.endpoint)


@limit(180)
def test_after_a_restart_of_kubelet_it_registers_again_and_pods_stay(site: Site) -> None:
    """Source: KEP-4381, 'Kubelet restarts'; pkg/kubelet/pluginmanager/plugin_manager.go."""
    kubelet = site.needs_kubelet()
    site.run("before", {"gpu": site.template("t")})
    container = site.container("before")
    with site.timed("registered"), site.registering():
        kubelet.process.stop()
        kubelet.process.start()
    assert site.run("after", {"gpu": {"resourceClaimTemplateName": "t"}})
    assert site.container("before") == container


@limit(180)
def test_slices_are_owned_by_the_node_and_complete_and_come_back(site: Site) -> None:
    """Kubelet removes the slices of a plugin that is gone for 30 s.

    Source: KEP-4381, 'Publishing node resources'; ``wipingDelay`` in
    pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
    """
    if not site.driver.publishes:
        pytest.skip("the driver publishes no devices (publishes: false)")
    published = site.slices()
    (node,) = (n for n in site.api.list("Node") if n["metadata"]["name"] == site.node)
    for each in published:
        owners = each["metadata"].get("ownerReferences", [])
        assert node["metadata"]["uid"] in {owner["uid"] for owner in owners}
        pool = each["spec"]["pool"]
        same = [s for s in published if s["spec"]["pool"]["name"] == pool["name"]]
        assert {s["spec"]["pool"]["generation"] for s in same} == {pool["generation"]}
        assert pool["resourceSliceCount"] == len(same)
    devices = _devices(site)
    assert devices

    plugin = site.needs_plugin()
    plugin.kill()
    with site.timed("slices gone"):
        site.wait("end of the slices", lambda: not site.slices(), timeout=90)
    with site.registering():
        plugin.start()
    with site.timed("slices back"):
        site.wait("the same devices", lambda: _devices(site) == devices)


def _devices(site: Site) -> list[str]:
    return sorted(d["name"] for s in site.slices() for d in s["spec"].get("devices", []))


@limit(180)
def test_a_container_has_the_device_of_its_claim(site: Site) -> None:
    """Source: KEP-4381, 'NodePrepareResources'; the container runtime puts CDI devices in."""
    assert site.run("with", {"gpu": site.template("t")})
    claim = site.claim_of("with")
    (result,) = site.results(claim)
    assert result["driver"] == site.driver.name
    assert [user["name"] for user in claim["status"]["reservedFor"]] == ["with"]
    assert site.run("without", {}) == []


@limit(180)
def test_an_init_container_has_the_device_too(site: Site) -> None:
    """Prepare comes before all containers: ``SyncPod`` in pkg/kubelet/kubelet.go."""
    seen = site.run("pod", {"gpu": site.template("t")}, init=True)
    assert seen
    assert site.seen("pod", "init") == seen


@limit(180)
def test_pods_that_share_a_claim_have_the_same_device_until_the_last_goes(site: Site) -> None:
    """Source: KEP-4381, shared claims; ``prepareResources`` in pkg/kubelet/cm/dra/manager.go."""
    claims = {"gpu": site.claim("shared")}
    first = site.run("first", claims)
    assert first
    assert site.run("second", claims) == first
    site.delete("first")
    assert site.run("third", claims) == first
    assert site.shell(site.driver.left).strip()


@limit(180)
def test_two_claims_of_a_pod_are_two_devices(site: Site) -> None:
    """Source: KEP-4381, ``pod.spec.resourceClaims``."""
    a, b = site.template("a"), site.template("b")
    used = {
        "one": [{"name": "a"}],
        "other": [{"name": "b"}],
        "both": [{"name": "a"}, {"name": "b"}],
    }
    both = site.run("pod", {"a": a, "b": b}, containers=used)
    one, other = site.seen("pod", "one"), site.seen("pod", "other")
    assert one
    assert other
    assert set(one).isdisjoint(other)
    assert sorted(one + other) == both


@limit(180)
def test_a_container_that_names_a_request_has_its_device_alone(site: Site) -> None:
    """Source: ``resources.claims[].request``; ``GetCDIDevices`` by request in KEP-4381."""
    claims = {"gpu": site.template("t", site.request("x"), site.request("y"))}
    used = {name: [{"name": "gpu", "request": name}] for name in ("x", "y")}
    y = site.run("pod", claims, containers=used)
    x = site.seen("pod", "x")
    assert x
    assert y
    assert set(x).isdisjoint(y)


@limit(180)
def test_first_available_falls_through_to_what_there_is(site: Site) -> None:
    """The result's request is ``request/subrequest``. Source: KEP-4816."""
    fits = site.request()["exactly"]
    none = {**fits, "selectors": [{"cel": {"expression": "device.driver == 'none.example.com'"}}]}
    choices = [{"name": "none", **none}, {"name": "fits", **fits}, {"name": "later", **fits}]
    assert site.run("pod", {"gpu": site.template("t", {"name": "any", "firstAvailable": choices})})
    (result,) = site.results(site.claim_of("pod"))
    assert result["request"] == "any/fits"


@limit(180)
def test_admin_access_takes_nothing_from_others(site: Site) -> None:
    """Source: KEP-5018."""
    if not site.driver.admin_class:
        pytest.skip("no class with adminAccess is known (admin_class)")
    asked = site.request(adminAccess=True, allocationMode="All")
    asked["exactly"]["deviceClassName"] = site.driver.admin_class
    assert site.run("before", {"gpu": site.template("t")})
    site.run("looks", {"gpu": site.template("admin", asked)})
    results = site.results(site.claim_of("looks"))
    assert results
    assert all(each["adminAccess"] for each in results)
    assert site.run("after", {"gpu": {"resourceClaimTemplateName": "t"}})


@limit(240)
def test_a_prepare_that_failed_is_told_and_made_good_once_it_can_work(site: Site) -> None:
    """Source: KEP-4381; the event is ``FailedPrepareDynamicResources`` in pkg/kubelet/events."""
    if not (site.driver.breaks and site.driver.mends):
        pytest.skip("how a Prepare is made to fail is not known (breaks, mends)")
    claims = {"gpu": site.template("t")}
    site.shell(site.driver.breaks)
    try:
        with site.timed("told"):
            site.start("pod", claims)
            site.wait("event", lambda: site.events("pod", "FailedPrepareDynamicResources"))
    finally:
        site.shell(site.driver.mends)
    with site.timed("runs once mended"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")


@limit(180)
def test_a_pod_that_is_gone_leaves_nothing(site: Site) -> None:
    """Unprepare follows upon the last container's end: ``SyncTerminatedPod`` in
    pkg/kubelet/kubelet.go."""
    site.run("pod", {"gpu": site.template("t")})
    assert site.shell(site.driver.left).strip(), "what is left is not told by the driver's file"
    with site.timed("nothing left"):
        site.delete("pod")
        site.wait_for_nothing_left()


@limit(180)
def test_a_pod_deleted_by_force_leaves_nothing(site: Site) -> None:
    """Its claim may be gone before Unprepare, which has its UID alone. Source: KEP-4381."""
    site.run("pod", {"gpu": site.template("t")})
    with site.timed("nothing left"):
        site.delete("pod", grace=0)
        site.wait_for_nothing_left()


@limit(240)
def test_a_claim_serves_one_pod_after_another(site: Site) -> None:
    """Prepared again after an Unprepare, under the same UID. Source: KEP-4381, claim lifetime."""
    claims = {"gpu": site.claim("kept")}
    for name in ("first", "second", "third"):
        assert site.run(name, claims)
        site.delete(name)
        with site.timed(f"{name} unprepared"):
            site.wait_for_nothing_left()


@limit(180)
def test_the_claim_tells_of_its_device(site: Site) -> None:
    """Source: KEP-4817, ``status.devices``."""
    if not site.driver.device_status:
        pytest.skip("the driver writes no status.devices (device_status: false)")
    site.run("pod", {"gpu": site.template("t")})
    with site.timed("told"):
        site.wait("status.devices", lambda: site.claim_of("pod")["status"].get("devices"))
    claim = site.claim_of("pod")
    keys = ("driver", "pool", "device")
    told = [tuple(each[key] for key in keys) for each in claim["status"]["devices"]]
    assert told == [tuple(each[key] for key in keys) for each in site.results(claim)]


@limit(180)
def test_a_plugin_killed_and_restarted_leaves_pods_alone(site: Site) -> None:
    """Source: KEP-4381, 'Plugin restarts': a Prepare is repeated with the same answer."""
    plugin = site.needs_plugin()
    claims = {"gpu": site.claim("shared")}
    held = site.run("stays", claims)
    container = site.container("stays")
    with site.timed("registered"), site.registering():
        plugin.kill()
        plugin.start()
    assert site.run("joins", claims) == held
    assert site.run("other", {"gpu": site.template("t")}) != held
    assert site.container("stays") == container


@limit(180)
def test_a_container_restarts_with_its_device_although_the_plugin_did_too(site: Site) -> None:
    """Kubelet repeats no Prepare for it: ``GetResources`` in pkg/kubelet/cm/dra/manager.go."""
    plugin = site.needs_plugin()
    held = site.run("pod", {"gpu": site.template("t")}, seconds=3)
    with site.registering():
        plugin.kill()
        plugin.start()
    before = site.container("pod")[1]
    with site.timed("restarted"):
        site.wait("restart", lambda: site.container("pod")[1] > before)
    assert site.seen("pod") == held


@limit(240)
def test_what_ended_while_the_plugin_was_away_is_unprepared(site: Site) -> None:
    """Kubelet repeats Unprepare: pkg/kubelet/cm/dra/manager.go, ``reconcileLoop``."""
    plugin = site.needs_plugin()
    site.run("pod", {"gpu": site.template("t")})
    plugin.kill()
    site.api.delete("Pod", "pod", namespace="dra-conformance", grace=0)
    site.wait("end of pod", lambda: not site.api.list("Pod", namespace="dra-conformance"))
    with site.registering():
        plugin.start()
    with site.timed("nothing left"):
        site.wait_for_nothing_left()


@limit(240)
def test_a_pod_bound_while_the_plugin_is_away_runs_once_it_is_back(site: Site) -> None:
    """Source: ``prepareResources`` in pkg/kubelet/cm/dra/manager.go, 'DRA driver ... not found'."""
    plugin = site.needs_plugin()
    with site.registering():
        plugin.kill()
        try:
            site.start("pod", {"gpu": site.template("t")})
            site.wait("event", lambda: site.events("pod", "FailedPrepareDynamicResources"))
        finally:
            plugin.start()
    with site.timed("runs once registered"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")
