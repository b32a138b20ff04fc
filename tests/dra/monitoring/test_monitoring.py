"""What a daemon serves about itself: probes, metrics, and neither at the other's cost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter

from dra.common.resources import MIG_NODES, NAMESPACES, NODES, PODS, RESOURCE_CLAIMS, Resource
from dra.kube.http import Exchange
from dra.monitoring.metrics import ApiRequests, CountingSink, daemon_registry, resource_of
from dra.monitoring.probes import Probes, Pulse
from dra.monitoring.server import AddressError, Pace, serving
from tests.dra.kube.clocks import FakeClock
from tests.helpers.scrape import collected, get, parsed
from tests.helpers.waiting import wait_for


@contextmanager
def server(address: str = "127.0.0.1:0", probes: Probes | None = None) -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("mig_dra_tries_total", "Tries.", registry=registry).inc(3)
    with serving(address, registry, probes or Probes()) as port:
        yield port


def test_the_metrics_of_its_registry_are_served_and_no_others() -> None:
    with server() as port:
        status, text = get(port, "/metrics")
        found = parsed(text)
        assert (status, found.value("mig_dra_tries_total")) == (200, 3)
        assert "python_info" not in found.families, "the library's own registry"
        assert get(port, "/")[0] == 404


def test_a_probe_answers_with_every_problem_and_readiness_needs_life() -> None:
    probes, ill, unready = Probes(), [""], [""]
    probes.live.add("work", lambda: ill[0])
    probes.ready.add("mirrors", lambda: unready[0])
    with server(probes=probes) as port:
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz") == (200, "ok\n")
        unready[0] = "not listed yet: pods"
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/readyz") == (503, "mirrors: not listed yet: pods\n")
        ill[0] = "stuck"
        assert get(port, "/healthz") == (503, "work: stuck\n")
        assert get(port, "/readyz") == (503, "work: stuck\nmirrors: not listed yet: pods\n")


def test_a_check_that_raises_fails_and_the_others_are_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    probes = Probes()

    def broken() -> str:
        raise ZeroDivisionError

    probes.live.add("broken", broken)
    probes.live.add("stuck", lambda: "no beat")
    first, second = probes.live.problems()
    assert first.startswith("broken: the check itself failed: ZeroDivisionError")
    assert second == "stuck: no beat"
    probes.live.problems()
    told = [r for r in caplog.records if r.message == "not live"]
    assert len(told) == 1, "a lasting problem is logged once"


def test_a_client_that_stalls_keeps_nobody_from_asking() -> None:
    with server() as port, socket.create_connection(("127.0.0.1", port)) as stalled:
        stalled.sendall(b"GET /healthz HT")
        assert get(port, "/healthz") == (200, "ok\n")


@contextmanager
def stalling(port: int, *, peers: int, each: int) -> Iterator[list[socket.socket]]:
    """Connections from several addresses that say half a request, the oldest first."""
    made: list[socket.socket] = []
    for number in range(peers * each):
        made.append(socket.socket())
        made[-1].bind((f"127.0.1.{1 + number % peers}", 0))
        made[-1].connect(("127.0.0.1", port))
        made[-1].sendall(b"GET /healthz")
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


@pytest.mark.parametrize(("peers", "each", "most"), [(1, 30, 8), (10, 8, 64)])
def test_whoever_opens_many_connections_has_few_threads_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, peers: int, each: int, most: int
) -> None:
    monkeypatch.setattr("dra.monitoring.server._Handler.timeout", 600.0)  # nobody goes by himself
    before = threading.active_count()
    with server() as port, stalling(port, peers=peers, each=each) as connections:
        assert get(port, "/healthz") == (200, "ok\n")
        wait_for("end of threads", lambda: threading.active_count() <= before + 2 + most)
        assert connections[0].recv(1) == b"", "the oldest goes"
        assert get(port, "/healthz") == (200, "ok\n")


def test_a_port_that_is_taken_is_refused_with_the_address() -> None:
    with (
        server() as port,
        pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"),
        server(f"127.0.0.1:{port}"),
    ):
        pass


def test_without_a_host_it_listens_on_both_families() -> None:
    with server(":0") as port:
        assert get(port, "/healthz")[0] == 200
        if socket.has_dualstack_ipv6():
            assert get(port, "/healthz", host="[::1]")[0] == 200


def test_a_loop_is_stuck_when_it_has_not_turned_for_too_long() -> None:
    now = [0.0]
    pulse = Pulse(10, clock=lambda: now[0])
    now[0] = 100
    assert pulse() == "", "it has not begun"
    pulse.beat()
    now[0] = 110
    assert pulse() == ""
    now[0] = 111
    assert pulse() == "nothing has been done for 11 s"
    pulse.beat()
    assert pulse() == ""
    now[0] = 200
    pulse.rest()
    assert pulse() == ""


@pytest.mark.parametrize(
    ("resource", "where", "label"),
    [
        (PODS, ("ns", "p", ""), "pods"),
        (PODS, ("", "", ""), "pods"),
        (NODES, ("", "n", "status"), "nodes/status"),
        (RESOURCE_CLAIMS, ("namespaces", "resourceclaims", "status"), "resourceclaims/status"),
        (NAMESPACES, ("", "pods", ""), "namespaces"),
        (MIG_NODES, ("", "n", ""), "mignodes"),
    ],
)
def test_a_path_is_counted_by_its_resource_whatever_the_names_in_it(
    resource: Resource, where: tuple[str, str, str], label: str
) -> None:
    assert resource_of(resource.path(*where)) == label


def test_requests_are_counted_by_code_and_by_none_without_an_answer() -> None:
    registry = CollectorRegistry()
    observe = ApiRequests(registry)
    path = RESOURCE_CLAIMS.path("ns", "c", "status")
    for status in (200, 409, 409, 0):
        observe(Exchange("PATCH", path, status, 0.02))
    found = collected(registry)
    name = "mig_dra_api_requests_total"
    common = {"method": "PATCH", "resource": "resourceclaims/status"}
    assert found.value(name, code="409", **common) == 2
    assert found.value(name, code="none", **common) == 1
    seconds = "mig_dra_api_request_duration_seconds"
    assert found.value(f"{seconds}_count", method="PATCH") == 4
    assert found.value(f"{seconds}_bucket", method="PATCH", le="0.01") == 0
    assert found.value(f"{seconds}_bucket", method="PATCH", le="0.025") == 4


def test_events_are_counted_and_passed_on() -> None:
    passed: list[tuple[str, bool]] = []

    class Sink:
        def emit(
            self, regarding: object, reason: str, message: str, *, warning: bool = False
        ) -> None:
            passed.append((reason, warning))

    registry = CollectorRegistry()
    recorder = CountingSink(Sink(), registry)
    recorder.emit({"kind": "Pod"}, "Allocated", "x")
    recorder.emit({"kind": "Node"}, "GpuLost", "x", warning=True)
    assert passed == [("Allocated", False), ("GpuLost", True)]
    found = collected(registry)
    assert found.value("mig_dra_events_total", kind="Node", reason="GpuLost", type="Warning") == 1


def test_calls_that_take_long_are_followed_by_a_rest_and_short_ones_wait_for_nothing() -> None:
    clock = FakeClock()
    pace = Pace(clock)

    def work(seconds: float) -> float:
        clock.at += seconds
        return seconds

    for seconds in (0.01, 0.01, 3.0):
        assert pace.call(lambda: work(seconds)) == seconds  # noqa: B023 - called at once
    assert clock.waits == pytest.approx([0.04, 0.04])
    clock.at += 0.5
    assert pace.call(lambda: "late") == "late"
    assert clock.waits[2:] == pytest.approx([0.5]), "a second at most"
    clock.at += 60.0
    with pytest.raises(ValueError, match="broken"):
        pace.call(lambda: int("broken"))
    assert len(clock.waits) == 3


def test_a_daemons_registry_has_its_process_and_no_series_of_creation_times() -> None:
    registry = daemon_registry()
    Counter("mig_dra_tries_total", "Tries.", registry=registry).inc()
    names = set(collected(registry).families)
    assert {"mig_dra_tries", "process_open_fds"} <= names
    assert [n for n in names if n.endswith("_created")] == []
