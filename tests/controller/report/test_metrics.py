"""What the controller shows of its work: to Prometheus over HTTP, and to kubelet's probes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from controller.report.metrics import ControllerMetrics
from dra.kube.timing import rfc3339
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, request
from tests.controller.helpers.site import Site
from tests.helpers.scrape import Scrape, collected, get, logged_port, scraped
from tests.helpers.waiting import wait_for

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


class Watched:
    """A bench whose wall clock is ``age`` seconds after the creation of every claim."""

    def __init__(self, *nodes: str) -> None:
        self.age = 0.0
        self.registry = CollectorRegistry()
        self.metrics = ControllerMetrics(
            self.registry, leads=lambda: True, now=lambda: CREATED + timedelta(seconds=self.age)
        )
        self.bench = Bench(*nodes, metrics=self.metrics)

    def claim(self, name: str, *requests: dict[str, Any], later: int = 0) -> None:
        body = claim(name, *requests)
        body["metadata"]["creationTimestamp"] = rfc3339(CREATED + timedelta(seconds=later))
        self.bench.claim(body)

    def scrape(self) -> Scrape:
        return collected(self.registry)


WHOLE = request("r", "mig-7g.40gb")


def test_claims_that_wait_show_by_reason_with_the_age_of_the_oldest() -> None:
    watched = Watched("node-a")
    for later, name in enumerate(("first", "c10", "c20")):
        watched.claim(name, WHOLE, later=10 * later)
        watched.bench.pod(pod(name, name))
        watched.bench.run()
    watched.claim("odd", request("r", "mig-9g.90gb"))
    watched.bench.pod(pod("odd", "odd"))
    watched.bench.run()
    watched.age = 42
    found = watched.scrape()
    assert found.value("mig_dra_waiting_claims", reason="WaitingForSlice") == 2
    assert found.value("mig_dra_waiting_claim_oldest_seconds", reason="WaitingForSlice") == 32
    assert found.value("mig_dra_waiting_claims", reason="NoSuchDeviceClass") == 1
    assert found.value("mig_dra_decision_duration_seconds_count", outcome="none") >= 1


def waiting(found: Scrape) -> float:
    return sum(found.values("mig_dra_waiting_claims"))


@pytest.mark.parametrize("end", ["room", "pod gone", "claim gone", "another gate", "not leading"])
def test_a_claim_that_waits_no_longer_does_not_show(end: str) -> None:
    watched = Watched("node-a")
    bench = watched.bench
    for name in ("c0", "c1"):
        watched.claim(name, WHOLE)
        bench.pod(pod(name, name))
    bench.run()
    assert waiting(watched.scrape()) == 1
    (name,) = (n for n in ("c0", "c1") if not bench.devices(n))
    (other,) = {"c0", "c1"} - {name}
    if end == "room":
        bench.delete_pod(other)
        bench.run(seconds=100)
        assert bench.devices(name)
    elif end == "pod gone":
        bench.delete_pod(name)
    elif end == "claim gone":
        bench.cluster.remove_claim(("default", name))
    elif end == "another gate":
        bench.pod(pod(name, name, schedulingGates=[{"name": "example.com/other"}]))
    else:
        watched.metrics.begins()
    bench.run(seconds=100) if end != "not leading" else None
    assert waiting(watched.scrape()) == 0


def test_a_running_controller_is_scraped_and_probed(site: Site) -> None:
    site.add_node("node-a")
    site.start("--metrics-address", "127.0.0.1:0")
    logs = [site.folder / "controller-0.log"]
    wait_for("port", lambda: logged_port(logs))
    port = logged_port(logs)
    site.wait_classes()
    site.claim("c", WHOLE)
    site.pod("p", "c")
    wait_for("allocation", lambda: site.allocation("c"))
    wait_for("count", lambda: scraped(port).value("mig_dra_claim_allocated_seconds_count") == 1)
    told = {"kind": "Pod", "reason": "Allocated", "type": "Normal"}
    wait_for("the event", lambda: scraped(port).value("mig_dra_events_total", **told) == 1)
    found = scraped(port)
    assert found.value("mig_dra_leader") == 1
    writes = found.values(
        "mig_dra_api_requests_total", method="PATCH", resource="resourceclaims/status", code="200"
    )
    assert sum(writes) == 1
    assert found.value("process_resident_memory_bytes") > 1e6
    assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/readyz") == (200, "ok\n")
