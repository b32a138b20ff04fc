"""The transport, reflector, lease and events of the driver against a real API server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dra.common.resources import EVENTS, NAMESPACES, NODES, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
)
from dra.kube.events import EventRecorder
from dra.kube.lease import LeaderElector, LeaseLock, LeaseTimes
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


def test_a_list_follows_its_pages(kube: KubeApi, claim: Obj) -> None:
    names = [f"page-{number:02}" for number in range(30)]  # the first page has 25
    for name in names:
        kube.create(RESOURCE_CLAIMS, new_claim(name, part="pages"))
    listed = kube.list(RESOURCE_CLAIMS, namespace=NAMESPACE, label_selector="part=pages")
    assert [item["metadata"]["name"] for item in listed.items] == names
    assert {item["kind"] for item in listed.items} == {"ResourceClaim"}


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


def test_the_second_candidate_leads_when_the_first_gives_the_lease_back(kube: KubeApi) -> None:
    times = LeaseTimes(lease_duration=6, renew_deadline=4.0, retry_period=0.5)
    first, second = (
        LeaderElector(LeaseLock(kube, namespace=NAMESPACE, name="lease", identity=who, times=times))
        for who in ("first", "second")
    )
    led: list[str] = []

    def compete(elector: LeaderElector, who: str) -> threading.Thread:
        def lead(lost: threading.Event) -> None:
            led.append(who)
            lost.wait()

        thread = threading.Thread(target=elector.run, args=(lead,), daemon=True)
        thread.start()
        return thread

    threads = [compete(first, "first")]
    wait_for("first leader", lambda: led == ["first"])
    threads.append(compete(second, "second"))
    first.stop()
    wait_for("second leader", lambda: led == ["first", "second"], timeout=5)
    second.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_repeated_event_is_counted_up(kube: KubeApi, claim: Obj) -> None:
    recorder = EventRecorder(kube, component="cluster-tests")
    for _ in range(3):
        recorder.emit(claim, "Waiting", "no slice is free", warning=True)
        assert recorder.flush(10)
    recorder.close()
    (event,) = kube.list(
        EVENTS, namespace=NAMESPACE, field_selector="involvedObject.name=claim"
    ).items
    assert (event["count"], event["type"], event["reason"]) == (3, "Warning", "Waiting")
    assert recorder.dropped == 0


def test_an_event_about_a_cluster_scoped_object_is_accepted(kube: KubeApi) -> None:
    node = kube.create(NODES, {"metadata": {"name": "told"}})
    recorder = EventRecorder(kube, component="cluster-tests")
    recorder.emit({**node, "apiVersion": "v1", "kind": "Node"}, "Told", "of a node")
    assert recorder.flush(10)
    recorder.close()
    kube.delete(NODES, "told")
    (event,) = kube.list(EVENTS, field_selector="involvedObject.name=told,reason=Told").items
    assert event["involvedObject"]["kind"] == "Node"


def _after(seconds: float) -> Callable[[], bool]:
    """True once the time has passed: for what shows only by lasting."""
    passed = threading.Event()
    timer = threading.Timer(seconds, passed.set)
    timer.daemon = True
    timer.start()
    return passed.is_set
