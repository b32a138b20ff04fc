import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra.common.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import GoneError, TooLargeError
from dra.kube.http import LARGEST_BYTES, PAGE_BYTES, SMALL_BYTES, Keep, whole
from tests.dra.kube.stub import Answer, Stub, eventually, listing, refuse, reply, thing

CLAIM = {"metadata": {"name": "c", "namespace": "ns", "resourceVersion": "7"}, "future": {"x": 1}}
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims"


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
            ("PATCH", "/api/v1/nodes/n", {}, "application/strategic-merge-patch+json", {"a": 1}),
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
            lambda api: api.delete(NODES, "n", uid="u", grace_seconds=0),
            (
                "DELETE",
                "/api/v1/nodes/n",
                {},
                "application/json",
                {
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "preconditions": {"uid": "u"},
                    "gracePeriodSeconds": 0,
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


def test_a_status_is_sent_and_answered_without_the_rest_of_its_object(
    stub: Stub, api: KubeApi
) -> None:
    stored = {"name": "n", "resourceVersion": "8", "labels": {"a": "b"}}
    stub.calls.append(reply({"kind": "MigNode", "metadata": stored, "spec": {}, "status": {}}))
    known = {"name": "n", "uid": "u", "resourceVersion": "7", "managedFields": [{}], "labels": {}}
    body: Obj = {"metadata": known, "spec": {"pool": "p"}, "status": {"gpus": []}}
    assert api.replace_status(MIG_NODES, body, field_manager="me") == stored
    (request,) = stub.requests
    assert (request.method, request.path) == ("PUT", MIG_NODES.path("", "n", "status"))
    assert request.query == {"fieldManager": "me"}
    assert request.body == {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigNode",
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
        "status": {"gpus": []},
    }


def test_list_follows_pages_and_names_the_kind_of_each_item(stub: Stub, api: KubeApi) -> None:
    stub.calls += [
        listing({"metadata": {"name": "a"}}, version=5, token="more"),
        listing({"metadata": {"name": "b"}}, version=5),
    ]
    listed = api.list(RESOURCE_CLAIMS, label_selector="x=y", field_selector="f=g")
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    assert listed.items == [kind | {"metadata": {"name": name}} for name in "ab"]
    assert listed.resource_version == "5"
    asked = {"labelSelector": "x=y", "fieldSelector": "f=g", "limit": "25"}
    assert [request.query for request in stub.requests] == [
        asked,
        asked | {"limit": "50", "continue": "more"},
    ]


def test_list_begins_again_once_when_the_continue_token_expired(stub: Stub, api: KubeApi) -> None:
    stub.calls += [
        listing(thing("a"), version=5, token="more"),
        refuse(410, "Expired"),
        listing(thing("a"), thing("b"), version=9),
    ]
    listed = api.list(PODS, namespace="ns")
    assert [item["metadata"]["name"] for item in listed.items] == ["a", "b"]
    assert listed.resource_version == "9"
    assert stub.requests[-1].query == {"limit": "50"}
    expired = [listing(thing("a"), version=5, token="more"), refuse(410, "Expired")]
    stub.calls += expired * 2
    with pytest.raises(GoneError):
        api.list(PODS)


def sized(*sizes: int) -> Answer:
    """A page of objects of so many bytes, of which the first ones may be too many for a page."""
    items = [thing(f"{n}", spec="x" * size) for n, size in enumerate(sizes)]
    return listing(*items, version=5, token="more")


@pytest.mark.parametrize("first", [1, 25], ids=["at the start", "after small ones"])
def test_a_page_that_is_too_large_is_asked_for_again_with_half_as_many(
    stub: Stub, api: KubeApi, first: int
) -> None:
    """Whatever came before it; a single object may take nearly all that is read of an answer."""
    stub.calls += [sized(10)] * (first > 1)
    limits = [25, 12, 6, 3, 1] if first == 1 else [25, 50, 25, 12, 6, 3, 1]
    stub.calls += [sized(PAGE_BYTES + 1)] * (len(limits) - 1 - (first > 1))
    stub.calls += [sized(PAGE_BYTES * 3), listing(thing("z"), version=5)]
    listed = api.list(PODS)
    assert [len(item["spec"]) for item in listed.items if "spec" in item][-1] == PAGE_BYTES * 3
    assert [int(r.query["limit"]) for r in stub.requests] == [*limits, 1]


def test_no_more_of_an_answer_is_read_than_the_largest_object_has(stub: Stub, api: KubeApi) -> None:
    stub.calls += [sized(LARGEST_BYTES)] * 6
    with pytest.raises(TooLargeError, match="more than"):
        api.list(PODS)
    with pytest.raises(TooLargeError, match="more than"):
        api.get(PODS, "p", namespace="ns")


def test_one_large_answer_is_held_at_a_time(stub: Stub, api: KubeApi) -> None:
    """While one is decoded, another is read no further; small ones are."""
    stub.calls += [sized(2 * SMALL_BYTES), sized(2 * SMALL_BYTES), listing(thing("a"))]
    inside, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(raw: msgspec.Raw) -> Obj:
        inside.set()
        assert go_on.wait(30)
        order.append("first")
        return whole(raw)

    def read(keep: Keep) -> None:
        next(api.parts(PODS, keep=keep))

    threads = [threading.Thread(target=read, args=(slow,))]
    threads[0].start()
    assert inside.wait(30)

    def second(raw: msgspec.Raw) -> Obj:
        order.append("second")
        return whole(raw)

    threads.append(threading.Thread(target=read, args=(second,)))
    threads[1].start()
    eventually(lambda: len(stub.requests) == 2)
    assert next(api.parts(PODS)).items[0]["metadata"]["name"] == "a"
    assert order == []
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "second"]


def test_objects_may_nest_as_deeply_as_the_server_lets_them(stub: Stub, tmp_path: Path) -> None:
    listed = json.dumps({"metadata": {"resourceVersion": "1"}, "items": [thing("p", spec="DEEP")]})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        api = KubeApi.connect(stub.kubeconfig(tmp_path / "k"), user_agent="t")
        stub.calls.append(reply(listed.replace('"DEEP"', "[" * 5000 + "]" * 5000).encode()))
        assert [p["metadata"]["name"] for p in api.list(PODS).items] == ["p"]
    finally:
        sys.setrecursionlimit(limit)
