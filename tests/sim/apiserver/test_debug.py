"""What only this server has: counters of writes, faults, a short history, gates."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from sim.apiserver.errors import ApiError
from sim.apiserver.protobuf import decode
from tests.helpers.waiting import PATIENCE
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


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    if "api" in request.fixturenames:
        api = request.getfixturevalue("api")
        api.delete(MAPS).ok()
        api.delete("/debug/writes").ok()


def fault(api: Api, **fields: Any) -> None:
    api.post("/debug/faults", fields).ok()


def writes(api: Api) -> dict[str, int]:
    counted: dict[str, int] = api.get("/debug/writes").ok()["writes"]
    return counted


def test_writes_are_counted_by_verb_and_resource(api: Api) -> None:
    api.post(MAPS, config_map("a", x="1")).ok()
    api.merge(f"{MAPS}/a", {"data": {"x": "2"}}).ok()
    api.merge(f"{MAPS}/a", {"data": {"x": "3"}}).ok()
    api.delete(f"{MAPS}/a").ok()
    assert writes(api) == {"create configmaps": 1, "patch configmaps": 2, "delete configmaps": 1}
    assert api.get("/debug/writes").ok()["total"] == 4


def test_reads_and_writes_of_nothing_new_count_as_no_write(api: Api) -> None:
    api.post(MAPS, config_map("a", x="1")).ok()
    api.delete("/debug/writes").ok()
    api.get(MAPS).ok()
    api.merge(f"{MAPS}/a", {"data": {"x": "1"}}).ok()
    api.post(MAPS, config_map("a")).refused(409)
    report = api.get("/debug/writes").ok()
    assert report["writes"] == {}
    # A refused request is none that was served.
    assert report["requests"] == {"list configmaps": 1, "patch configmaps": 1}


def test_subresources_are_counted_apart(api: Api) -> None:
    path = f"{DRA}/namespaces/default/resourceclaims"
    api.post(path, claim("c")).ok()
    api.merge(f"{path}/c/status", {"status": {"allocation": {}}}).ok()
    assert writes(api)["patch resourceclaims.resource.k8s.io/status"] == 1
    api.delete(f"{path}/c").ok()


@pytest.mark.parametrize(
    ("status", "reason"),
    [(500, "InternalError"), (429, "TooManyRequests"), (410, "Expired"), (409, "Conflict")],
)
def test_the_next_requests_fail_as_told(api: Api, status: int, reason: str) -> None:
    fault(api, method="GET", path="/configmaps", status=status, count=2)
    for _ in range(2):
        answer = api.get(MAPS)
        answer.refused(status, reason)
        assert ("Retry-After" in answer.headers) == (status == 429)
    api.get(MAPS).ok()


def test_other_methods_and_paths_are_spared(api: Api) -> None:
    fault(api, method="PATCH", path="/resourceclaims", status=500)
    api.post(MAPS, config_map("a")).ok()
    api.merge(f"{MAPS}/a", {"data": {"x": "1"}}).ok()
    assert api.get("/debug/writes").ok()["faults"] == 1


def test_a_connection_is_dropped_before_the_write(api: Api) -> None:
    fault(api, method="POST", path="/configmaps", drop=True)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.post(MAPS, config_map("a"))
    api.get(f"{MAPS}/a").refused(404)


def test_an_answer_is_lost_after_the_write(api: Api) -> None:
    fault(api, method="POST", path="/configmaps", drop=True, after=True)
    with pytest.raises(urllib3.exceptions.ProtocolError):
        api.post(MAPS, config_map("a"))
    api.get(f"{MAPS}/a").ok()


def test_a_request_is_delayed_and_others_are_not(api: Api) -> None:
    fault(api, method="GET", path="/configmaps$", delay=0.5)
    began = time.monotonic()
    api.get(MAPS).ok()
    assert time.monotonic() - began >= 0.5
    # It is longer than the client waits for an answer.
    fault(api, method="GET", path="/secrets$", delay=10 * PATIENCE)
    api.get(MAPS).ok()


def test_faults_are_called_off(api: Api) -> None:
    fault(api, path="/configmaps", status=500, count=99)
    api.delete("/debug/faults").ok()
    api.get(MAPS).ok()


def test_a_malformed_fault_is_refused(api: Api) -> None:
    api.post("/debug/faults", {"path": "("}).refused(400, "BadRequest")
    api.post("/debug/faults", [1]).refused(400, "BadRequest")


def test_a_watch_from_before_the_history_gets_a_gone_event(api: Api) -> None:
    version = api.get(MAPS).ok()["metadata"]["resourceVersion"]
    api.post(MAPS, config_map("a")).ok()
    api.post("/debug/compact", {}).ok()
    with api.watch(MAPS, resourceVersion=version, timeoutSeconds=900) as watch:
        (event,) = watch.rest()
    assert event.type == "ERROR"
    assert (event.object["code"], event.object["reason"]) == (410, "Expired")
    assert "too old resource version" in event.object["message"]


def test_a_page_from_before_the_history_is_gone(api: Api) -> None:
    for name in ("a", "b", "c"):
        api.post(MAPS, config_map(name)).ok()
    token = api.get(MAPS, limit=1).ok()["metadata"]["continue"]
    api.delete(f"{MAPS}/c").ok()
    api.post("/debug/compact", {}).ok()
    answer = api.get(MAPS, **{"continue": token})
    answer.refused(410, "Expired")


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


@pytest.mark.parametrize(
    ("collection", "kind", "lacking"),
    [
        ("/apis/apps/v1/namespaces/default/deployments", "Deployment", "no pod comes of one"),
        ("/apis/batch/v1/namespaces/default/jobs", "Job", "no pod comes of one"),
        ("/api/v1/namespaces/default/resourcequotas", "ResourceQuota", "nothing is counted"),
    ],
)
def test_who_writes_what_nothing_works_on_is_warned(
    api: Api, collection: str, kind: str, lacking: str
) -> None:
    answer = api.post(collection, {"metadata": {"name": "a"}, "kind": kind})
    answer.ok()
    assert f"stores {kind}s and does nothing with them: {lacking}" in answer.headers["Warning"]
    assert "Warning" not in api.post(MAPS, config_map("a")).headers


def test_a_kind_that_comes_as_protobuf_is_told_how_to_come() -> None:
    body = b"k8s\x00\x0a\x15\x0a\x07apps/v1\x12\x0aDeployment\x12\x00"
    with pytest.raises(ApiError, match=r"takes a Deployment as JSON or YAML, .* \| kubectl apply"):
        decode(body)


def test_without_collector_dependents_stay(start: Callable[..., Api]) -> None:
    api = start("--no-gc")
    owner = api.post(MAPS, config_map("owner")).ok()["metadata"]
    child = config_map("child")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    child["metadata"]["ownerReferences"] = [reference]
    api.post(MAPS, child).ok()
    api.delete(f"{MAPS}/owner").ok()
    time.sleep(0.3)
    api.get(f"{MAPS}/child").ok()
