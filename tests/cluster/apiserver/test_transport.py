"""The transport, reflector, lease and events of the driver against a real API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dra.common.resources import NAMESPACES, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
)
from dra.kube.reflector import Change, Reflector
from hack.cluster.controlplane import ADMIN, SCHEDULER, ControlPlane
from sim.processes import wait_for

NAMESPACE = "transport"


@pytest.fixture(scope="module")
def kube(control_plane: ControlPlane) -> Iterator[KubeApi]:
    client = KubeApi.connect(str(control_plane.kubeconfig(ADMIN)), user_agent="cluster-tests")
    client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    yield client
    client.close()


@pytest.fixture
def claim(kube: KubeApi) -> Iterator[Obj]:
    yield kube.create(RESOURCE_CLAIMS, new_claim("claim"))
    for each in kube.list(RESOURCE_CLAIMS, namespace=NAMESPACE).items:
        kube.delete(RESOURCE_CLAIMS, each["metadata"]["name"], namespace=NAMESPACE)


def new_claim(name: str, **labels: str) -> Obj:
    request = {"name": "slice", "exactly": {"deviceClassName": "none"}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"devices": {"requests": [request]}},
    }


def notes_on(obj: Obj) -> dict[str, str]:
    found: dict[str, str] = obj["metadata"].get("annotations", {})
    return found


def test_every_kind_of_write_changes_the_object(kube: KubeApi, claim: Obj) -> None:
    def note(key: str) -> Obj:
        return {"metadata": {"annotations": {key: "x"}}}

    def patch(body: Any, content: Any) -> Obj:
        return kube.patch(RESOURCE_CLAIMS, "claim", body, namespace=NAMESPACE, content=content)

    patch(note("merge"), "merge")
    patch(note("strategic"), "strategic")
    patch([{"op": "add", "path": "/metadata/annotations/json", "value": "x"}], "json")
    named = {"metadata": {"name": "claim", "namespace": NAMESPACE, **note("apply")["metadata"]}}
    applied = kube.apply(RESOURCE_CLAIMS, named, field_manager="mig.dra.dev/test")
    assert set(notes_on(applied)) == {"merge", "strategic", "json", "apply"}

    del applied["metadata"]["annotations"]
    kube.replace(RESOURCE_CLAIMS, applied)
    assert notes_on(kube.get(RESOURCE_CLAIMS, "claim", namespace=NAMESPACE)) == {}


def test_each_refusal_is_its_own_error(
    kube: KubeApi, control_plane: ControlPlane, claim: Obj
) -> None:
    with pytest.raises(ObjectNotFoundError):
        kube.get(RESOURCE_CLAIMS, "other", namespace=NAMESPACE)
    with pytest.raises(AlreadyExistsError):
        kube.create(RESOURCE_CLAIMS, new_claim("claim"))
    with pytest.raises(InvalidError, match="exactly"):
        kube.create(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": "bad", "namespace": NAMESPACE},
                "spec": {"devices": {"requests": [{"name": "slice"}]}},
            },
        )
    with pytest.raises(ConflictError):
        kube.delete(RESOURCE_CLAIMS, "claim", namespace=NAMESPACE, uid="other")
    stale = {"metadata": {"resourceVersion": "1", "annotations": {"a": "b"}}}
    with pytest.raises(ConflictError):
        kube.patch(RESOURCE_CLAIMS, "claim", stale, namespace=NAMESPACE)

    scheduler = KubeApi.connect(str(control_plane.kubeconfig(SCHEDULER)), user_agent="tests")
    with pytest.raises(ForbiddenError, match=r"namespaces.*cannot|cannot.*namespaces"):
        scheduler.create(NAMESPACES, {"metadata": {"name": "forbidden"}})
    scheduler.close()


def test_an_allocation_without_timestamp_is_accepted_and_then_immutable(
    kube: KubeApi, claim: Obj
) -> None:
    """What the real server enforces, and a stand-in must too."""
    device = {"request": "slice", "driver": "mig.dra.dev", "pool": "p", "device": "gpu-0"}
    allocation: Obj = {"devices": {"results": [device]}}

    def write(value: Obj) -> Obj:
        return kube.patch(
            RESOURCE_CLAIMS,
            "claim",
            {"status": {"allocation": value}},
            namespace=NAMESPACE,
            subresource="status",
        )

    assert write(allocation)["status"]["allocation"]["devices"]["results"] == [device]
    with pytest.raises(InvalidError, match="immutable"):
        write({"allocationTimestamp": "2026-11-21T03:31:30Z"})


def test_a_reflector_reports_the_life_of_a_claim(
    kube: KubeApi, claim: Obj, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra.kube.reflector.WATCH_SECONDS", 1.0)
    changes: list[Change] = []
    reflector = Reflector(kube, RESOURCE_CLAIMS, namespace=NAMESPACE, on_event=changes.append)
    reflector.start()
    try:
        assert reflector.wait_synced(10)
        kube.patch(
            RESOURCE_CLAIMS,
            "claim",
            {"metadata": {"annotations": {"seen": "yes"}}},
            namespace=NAMESPACE,
        )
        wait_for("modification", lambda: [each.kind for each in changes][1:] == ["modified"])
        # Longer than a watch lasts: the deletion arrives in a later one.
        wait_for("a second watch", _after(2.5))
        kube.delete(RESOURCE_CLAIMS, "claim", namespace=NAMESPACE)
        wait_for("deletion", lambda: len(changes) == 3)
    finally:
        reflector.stop()
    assert [change.kind for change in changes] == ["added", "modified", "deleted"]
    assert reflector.store.list() == []


def _after(seconds: float) -> Callable[[], bool]:
    """True once the time has passed: for what shows only by lasting."""
    passed = threading.Event()
    timer = threading.Timer(seconds, passed.set)
    timer.daemon = True
    timer.start()
    return passed.is_set
