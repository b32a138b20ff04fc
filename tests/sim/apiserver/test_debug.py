"""Features of this server alone: counters of writes, a short history, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.conformance.helpers.builders import (
    DRA,
    claim,
    counters,
    device,
    resource_slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api


def test_requests_and_writes_are_counted_by_who_verb_and_resource(api: Api) -> None:
    path = f"{DRA}/namespaces/default/resourceclaims"
    api.post(path, claim("c")).ok()
    api.post(path, claim("c")).refused(409)
    for _ in range(2):
        api.merge(f"{path}/c/status", {"status": {"allocation": {}}}).ok()
    api.delete(f"{path}/c").ok()
    report = api.get("/debug/writes").ok()
    status, whole = "patch resourceclaims.resource.k8s.io/status", "resourceclaims.resource.k8s.io"
    assert report["requests"][status] == 2
    # A refused request is none that was served, and what changes nothing is no write.
    written = {f"create {whole}": 1, status: 1, f"delete {whole}": 1}
    assert report["writers"]["conformance/1.0"] == written


def test_closed_gates_drop_counters_silently(start: Callable[..., Api]) -> None:
    api = start("--feature-gates", "DRAPartitionableDevices=false")
    consumed = [{"counterSet": "s", "counters": counters(1)}]
    body = resource_slice("a", device(consumesCounters=consumed))
    answer = api.post(f"{DRA}/resourceslices", body)
    assert answer.ok()["spec"]["devices"] == [{"name": "gpu-0"}]
    assert "Warning" not in answer.headers
    sets = [{"name": "s", "counters": counters(1)}]
    shared = api.post(f"{DRA}/resourceslices", resource_slice("b", sharedCounters=sets)).ok()
    assert "sharedCounters" not in shared["spec"]
