"""Duties of a DRA driver to pods with claims, kube-scheduler and kubelet's calls.

Sources and latencies as in test_plugin.py.
"""

from __future__ import annotations

import time

import pytest

from dra.common.resources import at
from tests.conformance.site import FAILED, RETRY_SECONDS, Site, limit

CALL_SECONDS = 90
"""Kubelet gives a call 45 s: ``defaultClientCallTimeout`` in
pkg/kubelet/cm/dra/plugin/dra_plugin.go."""
BINDING_SECONDS = 15
"""kube-scheduler looks at binding conditions every 5 s: ``bindClaim`` in
pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go."""


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
    both = {name: [{"name": "gpu"}] for name in ("one", "other")}
    assert site.run("second", claims, containers=both) == first
    assert site.seen("second", "one") == first
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
    """The result's request is ``request/subrequest``, and containers name the first part.

    Source: KEP-4816; ``addDevice`` in pkg/kubelet/cm/dra/claiminfo.go.
    """
    fits = site.request()["exactly"]
    none = {**fits, "selectors": [{"cel": {"expression": "device.driver == 'none.example.com'"}}]}
    choices = [{"name": "none", **none}, {"name": "fits", **fits}, {"name": "later", **fits}]
    claims = {"gpu": site.template("t", {"name": "any", "firstAvailable": choices})}
    assert site.run("pod", claims, containers={"main": [{"name": "gpu", "request": "any"}]})
    (result,) = site.results(site.claim_of("pod"))
    assert result["request"] == "any/fits"


@limit(180)
def test_admin_access_takes_nothing_from_others(site: Site) -> None:
    """Source: KEP-5018."""
    admin = site.needs_class(site.driver.admin_class, "admin_class")
    asked = site.request(of=admin, adminAccess=True, allocationMode="All")
    own = {"gpu": site.claim("own")}
    held = site.run("before", own)
    left = site.left()
    site.run("looks", {"gpu": site.template("admin", asked)})
    results = site.results(site.claim_of("looks"))
    assert results
    assert all(each["adminAccess"] for each in results)
    assert site.run("other", {"gpu": site.template("t")}) != held
    site.delete("other")
    site.delete("looks")
    site.wait("what was left before", lambda: site.left() == left)
    assert site.run("joins", own) == held


@limit(240)
def test_a_prepare_that_failed_is_told_and_made_good_once_it_can_work(site: Site) -> None:
    """Source: KEP-4381; the event is ``FailedPrepareDynamicResources`` in pkg/kubelet/events."""
    _needs_breaks(site)
    claims = {"gpu": site.template("t")}
    with site.broken(site.driver.breaks), site.timed("told"):
        site.start("pod", claims)
        site.wait("event", lambda: site.events("pod", FAILED))
    with site.timed("runs once mended"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")


def _needs_breaks(site: Site) -> None:
    if not (site.driver.breaks and site.driver.mends):
        pytest.skip("how Prepare and Unprepare are made to fail is not known (breaks, mends)")


@limit(240)
def test_an_unprepare_that_failed_is_made_good_once_it_can_work(site: Site) -> None:
    """Source: KEP-4381; ``SyncTerminatedPod`` in pkg/kubelet/kubelet.go repeats it, and so does
    ``reconcileLoop`` in pkg/kubelet/cm/dra/manager.go. A driver may also answer at once, and
    remove later."""
    _needs_breaks(site)
    site.run("pod", {"gpu": site.template("t")})
    failures = ("NodeUnprepareResources failed",)
    before = site.logged(*failures)
    with site.broken(site.driver.breaks):
        site.begin_deletion("pod")
        site.wait("Unprepare", lambda: site.is_gone("pod") or site.logged(*failures) > before)
        assert site.left()
    with site.timed("nothing left"):
        site.wait("end of pod", lambda: site.is_gone("pod"), timeout=RETRY_SECONDS)
        site.wait_for_nothing_left()


@limit(300)
@pytest.mark.parametrize("hangs", ["plugin", "work"])
def test_a_prepare_that_times_out_is_made_good_and_done_once(*, hangs: str, site: Site) -> None:
    """The plugin may do the work nevertheless, or answer before kubelet leaves; it is asked again.

    Source: KEP-4381, NodePrepareResources 'must be idempotent'.
    """
    if hangs == "plugin":
        site.needs_plugin()
    elif not (site.driver.hangs and site.driver.mends):
        pytest.skip("how the work of a Prepare is made to hang is not known (hangs, mends)")
    claims = {"gpu": site.template("t")}
    site.run("usual", claims)
    usual = len(site.left())
    site.delete("usual")
    site.wait_for_nothing_left()
    late = "DeadlineExceeded" if hangs == "plugin" else ""
    hanging = site.frozen() if hangs == "plugin" else site.broken(site.driver.hangs)
    with hanging, site.timed("told"):
        site.start("pod", claims)
        site.wait("event", lambda: site.events("pod", FAILED, late), timeout=CALL_SECONDS)
    with site.timed("runs once it goes on"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")
    assert len(site.left()) == usual


@limit(240)
def test_an_unprepare_that_times_out_is_made_good(site: Site) -> None:
    """Source: ``unprepareResources`` in pkg/kubelet/cm/dra/manager.go; repeated as above."""
    site.needs_plugin()
    site.run("pod", {"gpu": site.template("t")})
    with (
        site.frozen(),
        site.logging("NodeUnprepareResources", "DeadlineExceeded", timeout=CALL_SECONDS),
    ):
        site.begin_deletion("pod")
    with site.timed("nothing left"):
        site.wait("end of pod", lambda: site.is_gone("pod"), timeout=RETRY_SECONDS)
        site.wait_for_nothing_left()


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
def test_the_pod_tells_of_the_health_of_its_devices(site: Site) -> None:
    """Source: KEP-4680, ``allocatedResourcesStatus``; DRAResourceHealth of the plugin."""
    if not (site.driver.sickens and site.driver.heals):
        pytest.skip("how a device is made unhealthy is not known (sickens, heals)")
    site.run("pod", {"gpu": site.template("t")})
    site.wait("healthy device", lambda: site.health("pod") == {"Healthy"})
    site.shell(site.driver.sickens)
    try:
        with site.timed("sick"):
            site.wait("unhealthy device", lambda: site.health("pod") == {"Unhealthy"})
    finally:
        site.shell(site.driver.heals)
    with site.timed("healed"):
        site.wait("healthy device", lambda: site.health("pod") == {"Healthy"})


@limit(240)
def test_a_pod_is_bound_once_the_conditions_of_its_devices_are_true(site: Site) -> None:
    """And not while they fail.

    Source: KEP-5007; ``isPodReadyForBinding`` in dynamicresources.go, as above.
    """
    asked = site.request(of=site.needs_class(site.driver.binding_class, "binding_class"))
    _needs_breaks(site)
    with site.broken(site.driver.breaks):
        site.start("pod", {"gpu": site.template("t", asked)})
        site.wait("allocation", lambda: _conditions(site, "pod"))
        time.sleep(BINDING_SECONDS)
        assert "nodeName" not in site.pod("pod")["spec"]
    with site.timed("runs once they can be true"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")
    assert all(_conditions(site, "pod").values())


def _conditions(site: Site, name: str) -> dict[str, bool]:
    """Binding conditions of a pod's claim, and whether they are true."""
    if not at(site.pod(name), "status", "resourceClaimStatuses"):
        return {}
    status = site.claim_of(name).get("status", {})
    results = at(status, "allocation", "devices", "results", default=[])
    told = [c for device in status.get("devices", []) for c in device.get("conditions", [])]
    true = {each["type"] for each in told if each["status"] == "True"}
    return {c: c in true for each in results for c in each.get("bindingConditions", [])}
