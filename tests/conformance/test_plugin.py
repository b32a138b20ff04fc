"""Duties of a DRA driver's plugin to kubelet: registration, slices, restarts, updates.

Sources are files of Kubernetes 1.36 and its enhancement proposals (KEPs). Latencies are reported,
not asserted; each scenario has a limit of time.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import grpc
import pytest

from api.kubelet.pluginregistration.v1 import api_pb2, api_pb2_grpc
from sim.processes import Process
from tests.conformance.site import FAILED, RETRY_SECONDS, Site, limit

SERVICES = {"v1.DRAPlugin", "v1beta1.DRAPlugin"}


@limit(30)
def test_registration_says_who_serves_what(site: Site) -> None:
    """A socket in the registry answers GetInfo within a second.

    Source: pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go, and
    ``ValidatePlugin`` in pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
    """
    (info,) = (info for _, info in _answers(site) if info.name == site.driver.name)
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


@limit(240)
def test_a_registration_that_failed_and_a_prepare_of_before_are_repeated(site: Site) -> None:
    """Kubelet restarts during a Prepare, and GetInfo does not answer it then.

    Source: ``GenerateRegisterPluginFunc`` in operation_generator.go, as above, and the pauses of
    pkg/util/goroutinemap/exponentialbackoff.
    """
    kubelet = site.needs_kubelet()
    with site.registering(timeout=100):
        with site.frozen():
            with site.logging('"Processing resource"', "/pod"):
                site.start("pod", {"gpu": site.template("t")})
            with site.logging("RegisterPlugin error"):
                kubelet.process.stop()
                kubelet.process.start()
        began = time.monotonic()
    site.times["registered once it answers"] = time.monotonic() - began
    site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")


@limit(180)
def test_a_registration_that_kubelet_refuses_leaves_the_plugin_serving(site: Site) -> None:
    """Another name of its socket would register its endpoint a second time.

    Source: ``add`` in pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go; NotifyRegistrationStatus
    has the refusal.
    """
    plugin = site.needs_plugin()
    (path,) = (p for p, info in _answers(site) if info.name == site.driver.name)
    other = path.with_name(f"other-{path.name}")
    with site.logging("RegisterPlugin error", "already registered"):
        os.link(path, other)
    try:
        assert site.run("meanwhile", {"gpu": site.template("t")})
    finally:
        other.unlink()
    assert site.run("afterwards", {"gpu": {"resourceClaimTemplateName": "t"}})
    plugin.assert_running()


@limit(180)
def test_sockets_of_others_stay_and_keep_it_from_nothing(site: Site) -> None:
    """One that nobody serves, as a plugin leaves it that was killed, and one that always fails.

    Source: KEP-4381, 'Plugin registration': the directory belongs to all plugins of the node.
    """
    plugin = site.needs_plugin()
    registry = site.needs_kubelet().kubelet_root / "plugins_registry"
    with _sockets_of_others(registry) as others:
        with site.timed("registered"), site.registering():
            plugin.kill()
            plugin.start()
        assert site.run("pod", {"gpu": site.template("t")})
        assert [path for path in others if not path.is_socket()] == []


@contextmanager
def _sockets_of_others(registry: Path) -> Iterator[list[Path]]:
    dead, failing = registry / "dead.example.com-reg.sock", registry / "fails.example.com-reg.sock"
    server = grpc.server(ThreadPoolExecutor(1))  # without GetInfo
    server.add_insecure_port(f"unix:{failing}")
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(dead))
        yield [dead, failing]
    finally:
        dead.unlink(missing_ok=True)
        server.stop(None).wait()


def _answers(site: Site) -> list[tuple[Path, api_pb2.PluginInfo]]:
    """GetInfo of all that is registered on the node."""
    found = []
    for path in (site.needs_kubelet().kubelet_root / "plugins_registry").glob("*.sock"):
        with grpc.insecure_channel(f"unix:{path}") as channel, site.timed("GetInfo"):
            stub = api_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(api_pb2.InfoRequest(), timeout=1, wait_for_ready=True)
            found.append((path, info))
    return found


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
    devices = site.devices()
    assert devices

    plugin = site.needs_plugin()
    plugin.kill()
    with site.timed("slices gone"):
        site.wait("end of the slices", lambda: not site.slices(), timeout=90)
    with site.registering():
        plugin.start()
    with site.timed("slices back"):
        site.wait("the same devices", lambda: site.devices() == devices)


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
    site.delete("pod", grace=0)
    with site.registering():
        plugin.start()
    with site.timed("nothing left"):
        site.wait_for_nothing_left()


@limit(240)
def test_what_ended_while_kubelet_was_away_is_unprepared(site: Site) -> None:
    """Kubelet knows the claim by its checkpoint: pkg/kubelet/cm/dra/state."""
    kubelet = site.needs_kubelet()
    site.run("pod", {"gpu": site.template("t")})
    with site.registering():
        kubelet.process.stop()
        site.delete("pod", grace=0)
        kubelet.process.start()
    with site.timed("nothing left"):
        site.wait_for_nothing_left()


@limit(240)
def test_a_plugin_killed_in_a_prepare_finishes_it_once_it_is_back(site: Site) -> None:
    """Source: KEP-4381, 'Plugin restarts'."""
    plugin = site.needs_plugin()
    with site.registering():
        with site.frozen():
            with site.logging('"Processing resource"', "/pod"):
                site.start("pod", {"gpu": site.template("t")})
            plugin.kill()
        plugin.start()
    with site.timed("runs once registered"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")


@limit(240)
def test_a_pod_bound_while_the_plugin_is_away_runs_once_it_is_back(site: Site) -> None:
    """Source: ``prepareResources`` in pkg/kubelet/cm/dra/manager.go, 'DRA driver ... not found'."""
    plugin = site.needs_plugin()
    with site.registering():
        plugin.kill()
        try:
            site.start("pod", {"gpu": site.template("t")})
            site.wait("event", lambda: site.events("pod", FAILED))
        finally:
            plugin.start()
    with site.timed("runs once registered"):
        site.wait_for_running("pod", timeout=RETRY_SECONDS)
    assert site.seen("pod")


@limit(240)
def test_an_update_of_the_plugin_leaves_pods_alone(site: Site) -> None:
    """The next plugin is started before the last one ends.

    Source: ``RollingUpdate`` in k8s.io/dynamic-resource-allocation/kubeletplugin; kubelet takes the
    latest that is connected, ``get`` in pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
    """
    first, second = _both_plugins(site)
    claims = {"gpu": site.claim("shared")}
    held = site.run("before", claims)
    container = site.container("before")
    published = site.devices()
    _start_second(site)
    assert site.run("between", {"gpu": site.template("t")}) != held
    registering = site.registering() if site.driver.waits else nullcontext()
    with site.timed("taken over"), registering:
        first.stop(grace=30)
    site.plugin, site.spare = second, first
    assert site.run("joins", claims) == held
    assert site.run("after", {"gpu": {"resourceClaimTemplateName": "t"}}) != held
    assert site.container("before") == container
    assert site.devices() == published
    assert [info.name for _, info in _answers(site)].count(site.driver.name) == 1
    second.assert_running()


@limit(240)
def test_an_update_that_fails_leaves_the_last_plugin_serving(site: Site) -> None:
    """The next one is killed at its start, and again once it could have served."""
    first, second = _both_plugins(site)
    claims = {"gpu": site.claim("shared")}
    held = site.run("before", claims)
    second.start()
    second.kill()
    assert site.run("between", {"gpu": site.template("t")}) != held
    _start_second(site)
    second.kill()
    assert site.run("joins", claims) == held
    assert site.run("after", {"gpu": {"resourceClaimTemplateName": "t"}}) != held
    first.assert_running()
    _start_second(site)
    second.stop(grace=30)
    assert site.run("last", {"gpu": {"resourceClaimTemplateName": "t"}}) != held


def _both_plugins(site: Site) -> tuple[Process, Process]:
    first = site.needs_plugin()
    if site.spare is None:
        pytest.skip("how a second plugin runs beside the first is not known (second)")
    return first, site.spare


def _start_second(site: Site) -> None:
    """Until kubelet has registered it, or it says something if it ``waits``."""
    _, second = _both_plugins(site)
    if not site.driver.waits:
        with site.registering():
            second.start()
        return
    said = second.log.stat().st_size if second.log.exists() else 0
    second.start()
    site.wait("words of the second plugin", lambda: second.log.stat().st_size > said)
