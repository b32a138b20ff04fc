"""Readers by their tokens: reviewed by the API server, forgotten in seconds, bounded in number."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.page import reviews
from cli.page.mirrors import BusyError
from cli.page.reviews import KEPT_SECONDS, reviewed_readers
from dra.common.resources import MIG_NODES, PODS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import UnavailableError
from tests.cli.page.scenes import busy
from tests.cli.page.served import running_program
from tests.cli.world import World
from tests.helpers.waiting import wait_for

RBAC = "rbac.authorization.k8s.io"
_names = itertools.count()


def allow(world: World, user: str, *resources: str, namespace: str = "") -> Obj:
    """A role for a user, in all namespaces or one; returns its binding."""
    kind = "Role" if namespace else "ClusterRole"
    rule = {"apiGroups": ["*"], "resources": [*resources], "verbs": ["get", "list", "watch"]}
    metadata = {"name": f"{user}-{next(_names)}"} | ({"namespace": namespace} if namespace else {})
    subjects = [{"kind": "User", "name": user, "apiGroup": RBAC}]
    role = {"kind": kind, "name": metadata["name"], "apiGroup": RBAC}
    binding = {"subjects": subjects, "roleRef": role}
    for name, body in ((kind, {"rules": [rule]}), (f"{kind}Binding", binding)):
        resource = Resource(RBAC, "v1", f"{name.lower()}s", name, namespaced=bool(namespace))
        made = world.api.create(resource, {"metadata": metadata, **body})
    return made


def revoke(world: World, binding: Obj) -> None:
    namespace = binding["metadata"].get("namespace", "")
    plural = f"{binding['kind'].lower()}s"
    resource = Resource(RBAC, "v1", plural, binding["kind"], namespaced=bool(namespace))
    world.api.delete(resource, binding["metadata"]["name"], namespace=namespace)


def names_in(answer: Any) -> set[str]:
    return {
        owner[1]
        for node in answer["nodes"]
        for gpu in node["gpus"]
        for slot in gpu["slots"]
        for owner in slot["owners"]
    }


def test_each_reader_has_what_the_server_says(world: World) -> None:
    busy(world)
    everything = ("mignodes", "resourceclaims", "pods", "events", "nodes", "deviceclasses")
    allow(world, "admin", *everything, "resourceclaimtemplates", "namespaces", "leases")
    allow(world, "tenant", "resourceclaims", "pods", namespace="default")
    allow(world, "tenant", "mignodes")
    allow(world, "operator", "mignodes", "resourceclaims")
    with running_program(world.kubeconfig) as page:
        admin = page.loaded(token="user.admin")
        assert {"trainer-0", "big-0"} <= names_in(admin)
        assert admin["hidden"] == []
        assert [p["name"] for p in admin["waiting"]["items"]] == ["waits"]
        why = page.ask("/why?pod=default/waits", token="user.admin").json
        assert why["blocked"][0] == ["node-b", "gpu-0", [0]]
        tenant = page.loaded(token="user.tenant")
        assert names_in(tenant) == {"in use"}
        assert tenant["waiting"]["items"] == tenant["told"]["items"] == []
        own = page.loaded(token="user.tenant", namespace="default")
        assert "trainer-0" in names_in(own)
        why = page.ask("/why?pod=default/waits", token="user.tenant").json
        assert (why["findings"][0]["reason"], why["blocked"]) == ("WaitingForSlices", [])
        operator = page.loaded(token="user.operator", namespace="default")
        assert "trainer-0" in names_in(operator)
        assert operator["waiting"]["items"] == []
        assert page.ask("/why?pod=default/waits", token="user.operator").status == 403
        nobody = page.loaded(token="user.nobody", namespace="default")
        assert (nobody["nodes"], nobody["waiting"]["items"]) == ([], [])
        for token in ("admin", "user.", "", "x" * 20_000, "user.\u00e4"):
            assert page.ask("/data", token=token.encode().decode("latin-1")).status == 401, token


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_reviewed_is_forgotten_in_seconds(world: World) -> None:
    clock = Clock()
    find = reviewed_readers(world.api, clock)
    binding = allow(world, "u", "mignodes")
    reader = find("user.u")
    assert reader is not None
    assert reader.may_list(MIG_NODES, "")
    assert not reader.may_list(PODS, "")
    revoke(world, binding)
    again = find("user.u")
    assert again is reader
    assert again.may_list(MIG_NODES, "")
    clock.now += KEPT_SECONDS + 0.1
    after = find("user.u")
    assert after is not None
    assert not after.may_list(MIG_NODES, "")


class Counting(KubeApi):
    """A client that counts what it reviews, and may be told to wait."""

    def __init__(self, api: KubeApi) -> None:
        vars(self).update(vars(api))
        self.asked: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def create(self, resource: Resource, body: Obj, **options: Any) -> Obj:
        self.asked.append(resource.kind)
        self.gate.wait()
        return super().create(resource, body, **options)


def test_a_token_is_reviewed_once_whether_it_is_good_or_not(world: World) -> None:
    api = Counting(world.api)
    find = reviewed_readers(api, Clock())
    for _ in range(5):
        assert find("wrong") is None
        reader = find("user.u")
        assert reader is not None
        reader.may_list(PODS, "")
    assert sorted(api.asked) == ["SubjectAccessReview", "TokenReview", "TokenReview"]


def test_readers_and_rights_that_are_kept_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_MOST_READERS", 4)
    monkeypatch.setattr(reviews, "_MOST_RIGHTS", 3)
    api = Counting(world.api)
    find = reviewed_readers(api, Clock())
    for number in range(20):
        find(f"user.{number}")
    api.asked.clear()
    reader = find("user.19")
    assert api.asked == []
    find("user.15")
    assert api.asked == ["TokenReview"], "of five, the one that came first is asked for anew"
    assert reader is not None
    for number in range(3):
        reader.may_list(PODS, f"ns-{number}")
    with pytest.raises(BusyError):
        reader.may_list(PODS, "one-more")
    assert not reader.may_list(PODS, "ns-0")


def test_strangers_have_no_more_than_a_few_reviews_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviews, "_PATIENCE_SECONDS", 0.01)
    api = Counting(world.api)
    find = reviewed_readers(api, Clock())
    api.gate.clear()
    threads = [threading.Thread(target=find, args=(f"t{i}",), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    wait_for("four reviews", lambda: len(api.asked) == 4)
    with pytest.raises(BusyError):
        find("user.u")
    api.gate.set()
    for thread in threads:
        thread.join()
    assert find("user.u") is not None


def test_a_server_that_does_not_review_lets_nobody_in(tmp_path: Path) -> None:
    config = tmp_path / "config"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    text = {"clusters": [cluster], "contexts": [context], "current-context": "c", "users": users}
    config.write_text(json.dumps(text))
    api = KubeApi.connect(str(config), user_agent="test", timeout_seconds=1)
    with pytest.raises(UnavailableError):
        reviewed_readers(api)("user.admin")
    api.close()
