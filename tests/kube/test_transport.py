import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dra.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    UnavailableError,
)
from dra.kube.http import HttpClient
from dra.kube.resources import (
    EVENTS,
    LEASES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.kube.transport import KubeApi
from tests.kube.stub import (
    Handler,
    Stub,
    drop,
    eventually,
    hang,
    listing,
    refuse,
    reply,
    status_object,
    thing,
)

CLAIM = {"metadata": {"name": "c", "namespace": "ns", "resourceVersion": "7"}, "future": {"x": 1}}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "subresource", "path"),
    [
        (PODS, "ns", "p", "status", "/api/v1/namespaces/ns/pods/p/status"),
        (PODS, "", "", "", "/api/v1/pods"),
        (NODES, "ignored", "n", "", "/api/v1/nodes/n"),
        (LEASES, "ns", "l", "", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
        (MIG_NODES, "", "n", "status", "/apis/mig.dra.dev/v1alpha1/mignodes/n/status"),
        (PODS, "ns", "a/../b", "", "/api/v1/namespaces/ns/pods/a%2F..%2Fb"),
    ],
)
def test_a_resource_knows_its_path(
    resource: Resource, namespace: str, name: str, subresource: str, path: str
) -> None:
    assert resource.path(namespace, name, subresource) == path


@pytest.mark.parametrize(
    ("call", "sent"),
    [
        (
            lambda api: api.get(RESOURCE_CLAIMS, "c", namespace="ns"),
            ("GET", f"{CLAIMS}/c", {}, None, None),
        ),
        (
            lambda api: api.create(RESOURCE_CLAIMS, CLAIM, field_manager="me"),
            ("POST", CLAIMS, {"fieldManager": "me"}, "application/json", CLAIM),
        ),
        (
            lambda api: api.replace(RESOURCE_CLAIMS, CLAIM, subresource="status"),
            ("PUT", f"{CLAIMS}/c/status", {}, "application/json", CLAIM),
        ),
        (
            lambda api: api.patch(RESOURCE_CLAIMS, "c", {"a": None}, namespace="ns"),
            ("PATCH", f"{CLAIMS}/c", {}, "application/merge-patch+json", {"a": None}),
        ),
        (
            lambda api: api.patch(
                RESOURCE_CLAIMS,
                "c",
                [{"op": "remove", "path": "/a"}],
                namespace="ns",
                subresource="status",
                content="json",
                field_manager="me",
            ),
            (
                "PATCH",
                f"{CLAIMS}/c/status",
                {"fieldManager": "me"},
                "application/json-patch+json",
                [{"op": "remove", "path": "/a"}],
            ),
        ),
        (
            lambda api: api.patch(NODES, "n", {"a": 1}, content="strategic"),
            (
                "PATCH",
                "/api/v1/nodes/n",
                {},
                "application/strategic-merge-patch+json",
                {"a": 1},
            ),
        ),
        (
            lambda api: api.apply(
                RESOURCE_CLAIMS,
                {"metadata": {"name": "c", "namespace": "ns"}},
                field_manager="me",
                subresource="status",
            ),
            (
                "PATCH",
                f"{CLAIMS}/c/status",
                {"fieldManager": "me", "force": "true"},
                "application/apply-patch+yaml",
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": "c", "namespace": "ns"},
                },
            ),
        ),
        (
            lambda api: api.delete(RESOURCE_CLAIMS, "c", namespace="ns"),
            (
                "DELETE",
                f"{CLAIMS}/c",
                {},
                "application/json",
                {"apiVersion": "v1", "kind": "DeleteOptions"},
            ),
        ),
        (
            lambda api: api.delete(
                NODES,
                "n",
                uid="u",
                resource_version="7",
                grace_seconds=0,
                propagation="Foreground",
            ),
            (
                "DELETE",
                "/api/v1/nodes/n",
                {},
                "application/json",
                {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "preconditions": {"uid": "u", "resourceVersion": "7"},
                    "gracePeriodSeconds": 0,
                    "propagationPolicy": "Foreground",
                },
            ),
        ),
    ],
)
def test_each_verb_sends_what_the_api_defines(
    stub: Stub,
    api: KubeApi,
    call: Callable[[KubeApi], Any],
    sent: tuple[str, str, dict[str, str], str | None, Any],
) -> None:
    stub.calls.append(reply({"kind": "Stored"}))
    answer = call(api)
    (request,) = stub.requests
    content_type = request.headers.get("content-type")
    assert (request.method, request.path, request.query, content_type, request.body) == sent
    assert request.headers["user-agent"] == "tests/1"
    assert request.headers["authorization"] == "Bearer secret"
    assert answer == (None if request.method == "DELETE" else {"kind": "Stored"})


def test_list_follows_pages_and_names_the_kind_of_each_item(stub: Stub, api: KubeApi) -> None:
    stub.calls += [
        listing({"metadata": {"name": "a"}}, version=5, token="more"),
        listing({"metadata": {"name": "b"}}, version=5),
    ]
    listed = api.list(RESOURCE_CLAIMS, label_selector="x=y", field_selector="f=g", page_size=1)
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    assert listed.items == [kind | {"metadata": {"name": name}} for name in "ab"]
    assert listed.resource_version == "5"
    asked = {"labelSelector": "x=y", "fieldSelector": "f=g", "limit": "1"}
    assert [request.query for request in stub.requests] == [asked, asked | {"continue": "more"}]


def test_list_takes_everything_at_once_when_the_continue_token_expired(
    stub: Stub, api: KubeApi
) -> None:
    stub.calls += [
        listing(thing("a"), version=5, token="more"),
        refuse(410, "Expired"),
        listing(thing("a"), thing("b"), version=9),
    ]
    listed = api.list(PODS, namespace="ns")
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "b"]
    assert listed.resource_version == "9"
    assert stub.requests[-1].query == {}


def test_an_empty_list_may_say_null(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(reply({"metadata": {"resourceVersion": "3"}, "items": None}))
    assert api.list(PODS).items == []


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (404, "NotFound", NotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (401, "Unauthorized", ForbiddenError),
        (403, "Forbidden", ForbiddenError),
        (400, "BadRequest", InvalidError),
        (422, "Invalid", InvalidError),
        (410, "Expired", GoneError),
        (410, "", GoneError),
        (429, "TooManyRequests", UnavailableError),
        (500, "InternalError", UnavailableError),
        (503, "", UnavailableError),
        (405, "MethodNotAllowed", KubeError),
    ],
)
def test_a_refusal_becomes_one_error_with_the_servers_words(
    stub: Stub, api: KubeApi, code: int, reason: str, expected: type[KubeError]
) -> None:
    stub.calls.append(refuse(code, reason, "because", details={"name": "c"}))
    with pytest.raises(KubeError) as caught:
        api.get(PODS, "p", namespace="ns")
    error = caught.value
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "because")
    assert error.details == {"name": "c"}
    assert str(error) == "because"


def test_a_refusal_without_status_object_names_the_request(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(reply(b"<html>bad gateway</html>", 502))
    with pytest.raises(UnavailableError, match=r"GET /api/v1/nodes/n: HTTP 502 <html>bad gateway"):
        api.get(NODES, "n")


@pytest.mark.parametrize("body", [b"not json", b"[1]", b""])
def test_an_answer_that_is_no_object_is_an_error(stub: Stub, api: KubeApi, body: bytes) -> None:
    stub.calls.append(reply(body))
    with pytest.raises(UnavailableError, match="no JSON object"):
        api.get(NODES, "n")


def test_a_redirect_is_not_followed_with_the_credentials(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(reply(b"", 302, Location="http://127.0.0.1:9/elsewhere"))
    with pytest.raises(KubeError, match="302"):
        api.get(NODES, "n")
    assert len(stub.requests) == 1


def test_a_read_is_repeated_once_when_the_connection_drops(stub: Stub, api: KubeApi) -> None:
    stub.calls += [drop, reply(thing("p"))]
    assert api.get(PODS, "p", namespace="ns") == thing("p")
    assert len(stub.requests) == 2


def test_a_write_is_never_repeated_when_the_connection_drops(stub: Stub, api: KubeApi) -> None:
    stub.calls += [drop, reply(thing("p"))]
    with pytest.raises(UnavailableError) as caught:
        api.create(PODS, thing("p"))
    assert caught.value.status == 0
    assert len(stub.requests) == 1


def test_a_server_that_says_nothing_costs_the_time_budget_once(stub: Stub, api: KubeApi) -> None:
    stub.calls += [hang, hang]
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="GET /api/v1/nodes/n"):
        api.get(NODES, "n")
    assert 0.9 < time.monotonic() - began < 1.8
    assert len(stub.requests) == 1


def test_no_server_is_unavailable(tmp_path: Path, stub: Stub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    config = stub.kubeconfig(tmp_path / "k", cluster={"server": f"http://127.0.0.1:{port}"})
    api = KubeApi.connect(config, user_agent="t", timeout_seconds=1)
    with pytest.raises(UnavailableError, match="refused"):
        api.get(NODES, "n")


@pytest.mark.parametrize("code", [429, 503])
def test_a_throttled_call_is_repeated_when_the_server_says(
    stub: Stub, api: KubeApi, code: int
) -> None:
    stub.calls += [refuse(code, retry_after=0), refuse(code, retry_after=0), reply(thing("p"))]
    assert api.create(PODS, thing("p")) == thing("p")
    assert len(stub.requests) == 3


def test_throttling_beyond_the_time_budget_is_the_callers_to_wait(stub: Stub, api: KubeApi) -> None:
    stub.calls += [refuse(429, retry_after=30)]
    with pytest.raises(UnavailableError) as caught:
        api.create(PODS, thing("p"))
    assert caught.value.retry_after == 30
    assert len(stub.requests) == 1


def test_fields_that_nobody_knows_survive_a_read_and_a_write(stub: Stub, api: KubeApi) -> None:
    stored: Obj = thing("p", future={"nested": [{"a": None}, 1.5, "1e3"]})
    stub.calls += [reply(stored), reply(stored)]
    api.replace(PODS, api.get(PODS, "p", namespace="ns"))
    assert stub.requests[1].body == stored


def test_status_details_may_carry_the_pause(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(
        reply(status_object(500, "ServerTimeout", details={"retryAfterSeconds": 9}), 500)
    )
    with pytest.raises(UnavailableError) as caught:
        api.get(EVENTS, "e", namespace="ns")
    assert caught.value.retry_after == 9


def test_many_threads_may_use_one_client(stub: Stub, api: KubeApi) -> None:
    names = [f"p{number}" for number in range(200)]

    def echo(handler: Handler) -> None:
        handler.send_json(thing(handler.path.rsplit("/", 1)[1]), 200, {})

    stub.calls += [echo] * len(names)
    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(lambda name: api.get(PODS, name, namespace="ns"), names))
    assert read == [thing(name) for name in names]


def test_closing_ends_the_wait_for_a_throttling_server(stub: Stub, api: KubeApi) -> None:
    patient = KubeApi(HttpClient(api._http._connection, user_agent="t", timeout_seconds=600))
    stub.calls.append(refuse(429, retry_after=300))
    errors: list[UnavailableError] = []

    def call() -> None:
        try:
            patient.get(NODES, "n")
        except UnavailableError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: stub.requests)
    patient.close()
    caller.join(5)
    assert [error.status for error in errors] == [429]
