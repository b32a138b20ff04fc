"""Features of this server alone: counters of writes, a short history, gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sim.apiserver.errors import ApiError
from sim.apiserver.protobuf import decode
from tests.sim.conformance.helpers.builders import (
    DRA,
    claim,
    config_map,
    counters,
    device,
    resource_slice,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api

MAPS = "/api/v1/namespaces/default/configmaps"


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


def test_the_history_has_a_length(start: Callable[..., Api]) -> None:
    api = start("--history", "3")
    version = int(api.get(MAPS).ok()["metadata"]["resourceVersion"])
    for index in range(4):
        api.post(MAPS, config_map(f"m{index}")).ok()
    with api.watch(MAPS, resourceVersion=version, timeoutSeconds=900) as watch:
        assert watch.next().type == "ERROR"
    with api.watch(MAPS, resourceVersion=version + 1, timeoutSeconds=900) as watch:
        assert [watch.next().name for _ in range(3)] == ["m1", "m2", "m3"]


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


def test_who_writes_what_nothing_works_on_is_warned(api: Api) -> None:
    body = {"metadata": {"name": "a"}, "kind": "Deployment"}
    answer = api.post("/apis/apps/v1/namespaces/default/deployments", body)
    answer.ok()
    assert "stores Deployments and does nothing with them" in answer.headers["Warning"]
    assert "Warning" not in api.post(MAPS, config_map("a")).headers


def test_a_kind_that_comes_as_protobuf_is_told_how_to_come() -> None:
    body = b"k8s\x00\x0a\x15\x0a\x07apps/v1\x12\x0aDeployment\x12\x00"
    with pytest.raises(ApiError, match=r"takes a Deployment as JSON or YAML, .* \| kubectl apply"):
        decode(body)
