"""The same code against the embedded API server, which is a process of its own."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import EVENTS, LEASES, NODES, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    InvalidError,
    ObjectNotFoundError,
)
from dra.kube.events import EventRecorder
from dra.kube.lease import LeaderElector, LeaseTimes
from dra.kube.reflector import Reflector
from tests.dra.kube.stub import eventually
from tests.helpers.waiting import PATIENCE

HISTORY = 30


def claim(name: str, **more: str) -> Obj:
    request = {"name": "slice", "exactly": {"deviceClassName": "mig-1g.5gb"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"} | more,
        "spec": {"devices": {"requests": [request]}},
    }


class Server:
    def __init__(self, folder: Path, port: int = 0) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.unlink(missing_ok=True)
        command = [sys.executable, "-m", "sim", "apiserver", "--history", str(HISTORY)]
        command += ["--port", str(port), "--kubeconfig-out", str(self.kubeconfig)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(self.kubeconfig.exists)

    @property
    def port(self) -> int:
        return int(self.kubeconfig.read_text().rsplit(":", 1)[0].split("127.0.0.1:")[1].split()[0])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.kill()


@pytest.fixture
def cluster(server: Server) -> Iterator[KubeApi]:
    api = KubeApi.connect(str(server.kubeconfig), user_agent="tests/1")
    yield api
    api.close()


def names(objects: list[Obj]) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in objects)


def test_objects_live_their_life_through_every_verb(cluster: KubeApi) -> None:
    created = cluster.create(RESOURCE_CLAIMS, claim("c"))
    uid, version = created["metadata"]["uid"], created["metadata"]["resourceVersion"]
    with pytest.raises(AlreadyExistsError):
        cluster.create(RESOURCE_CLAIMS, claim("c"))
    finalized = created | {"metadata": created["metadata"] | {"finalizers": ["example.com/x"]}}
    cluster.replace(RESOURCE_CLAIMS, finalized)
    with pytest.raises(ConflictError):
        cluster.replace(RESOURCE_CLAIMS, finalized)
    with pytest.raises(ConflictError):
        cluster.patch(
            RESOURCE_CLAIMS,
            "c",
            {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}},
            namespace="default",
        )
    with pytest.raises(InvalidError):
        cluster.patch(RESOURCE_CLAIMS, "c", {"spec": None}, namespace="default")
    applied = cluster.apply(
        RESOURCE_CLAIMS,
        {"metadata": {"name": "c", "namespace": "default", "labels": {"x": "y"}}},
        field_manager="tests",
    )
    assert applied["metadata"]["labels"] == {"x": "y"}
    with pytest.raises(ConflictError):
        cluster.delete(RESOURCE_CLAIMS, "c", namespace="default", uid="another")
    cluster.delete(RESOURCE_CLAIMS, "c", namespace="default", uid=uid)
    read = cluster.get(RESOURCE_CLAIMS, "c", namespace="default")
    assert "deletionTimestamp" in read["metadata"]
    operations = [{"op": "remove", "path": "/metadata/finalizers"}]
    cluster.patch(RESOURCE_CLAIMS, "c", operations, namespace="default", content="json")
    with pytest.raises(ObjectNotFoundError):
        cluster.get(RESOURCE_CLAIMS, "c", namespace="default")


def test_a_list_in_pages_is_complete_and_selected(cluster: KubeApi) -> None:
    for number in range(5):
        cluster.create(RESOURCE_CLAIMS, claim(f"c{number}"))
    listed = cluster.list(RESOURCE_CLAIMS, page_size=2)
    assert names(listed.items) == [f"c{number}" for number in range(5)]
    assert int(listed.resource_version) > 0
    one = cluster.list(RESOURCE_CLAIMS, field_selector="metadata.name=c3")
    assert names(one.items) == ["c3"]


def test_a_mirror_follows_and_outlives_the_server(
    server: Server, cluster: KubeApi, tmp_path: Path
) -> None:
    """The second server starts from nothing: what it does not know was deleted."""
    for number in range(10):
        cluster.create(RESOURCE_CLAIMS, claim(f"old-{number}"))
    changes: list[tuple[str, str]] = []
    mirror = Reflector(
        cluster,
        RESOURCE_CLAIMS,
        on_event=lambda c: changes.append((c.kind, (c.new or c.old or {})["metadata"]["name"])),
    )
    mirror.start()
    try:
        assert mirror.wait_synced(PATIENCE)
        assert len(mirror.store) == 10
        cluster.patch(
            RESOURCE_CLAIMS, "old-1", {"metadata": {"labels": {"a": "b"}}}, namespace="default"
        )
        cluster.delete(RESOURCE_CLAIMS, "old-2", namespace="default")
        eventually(lambda: changes[10:] == [("modified", "old-1"), ("deleted", "old-2")])

        port = server.port
        server.kill()
        server.process = Server(tmp_path, port).process
        cluster.create(RESOURCE_CLAIMS, claim("new"))
        eventually(lambda: names(mirror.store.list()) == ["new"])
        assert sorted(changes[12:]) == sorted(
            [("deleted", f"old-{number}") for number in range(10) if number != 2]
            + [("added", "new")]
        )
    finally:
        mirror.stop()


def test_a_watch_from_before_the_servers_memory_is_gone(cluster: KubeApi) -> None:
    first = cluster.create(RESOURCE_CLAIMS, claim("c"))["metadata"]["resourceVersion"]
    for number in range(HISTORY + 5):
        cluster.patch(
            RESOURCE_CLAIMS,
            "c",
            {"metadata": {"labels": {"n": str(number)}}},
            namespace="default",
        )
    with pytest.raises(GoneError):
        list(cluster.watch(RESOURCE_CLAIMS, resource_version=first, timeout_seconds=2))


def test_a_watch_ends_after_its_time_with_a_bookmark(cluster: KubeApi) -> None:
    version = cluster.list(RESOURCE_CLAIMS).resource_version
    node = cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    stream = cluster.watch(RESOURCE_CLAIMS, resource_version=version, timeout_seconds=1)
    *_, last = stream
    assert last.type == "BOOKMARK"
    reached = last.object["metadata"]["resourceVersion"]
    assert int(reached) >= int(node["metadata"]["resourceVersion"])


def test_leadership_passes_between_two_programs(cluster: KubeApi) -> None:
    times = LeaseTimes(lease_duration=300, renew_deadline=200, retry_period=0.1)
    electors = [
        LeaderElector(cluster, namespace="default", name="ctl", identity=identity, times=times)
        for identity in ("a", "b")
    ]
    order: list[str] = []

    def program(number: int) -> threading.Thread:
        def work(lost: threading.Event) -> None:
            order.append("ab"[number])
            lost.wait()

        thread = threading.Thread(target=electors[number].run, args=(work,))
        thread.start()
        return thread

    threads = [program(0)]
    try:
        eventually(lambda: order == ["a"])
        threads.append(program(1))
        electors[0].stop()
        eventually(lambda: order == ["a", "b"])
        assert cluster.get(LEASES, "ctl", namespace="default")["spec"]["holderIdentity"] == "b"
    finally:
        for elector in electors:
            elector.stop()
        for thread in threads:
            thread.join(PATIENCE)
    assert cluster.get(LEASES, "ctl", namespace="default")["spec"]["holderIdentity"] == ""


def test_events_are_stored_and_counted(cluster: KubeApi) -> None:
    about = cluster.create(RESOURCE_CLAIMS, claim("c"))
    recorder = EventRecorder(cluster, component="tests", host=os.uname().nodename)
    for _ in range(2):
        recorder.emit(about, "Waiting", "no 1g.5gb is free", warning=True)
        assert recorder.flush(PATIENCE)
    recorder.close()
    assert recorder.dropped == 0
    selector = f"involvedObject.uid={about['metadata']['uid']},involvedObject.kind=ResourceClaim"
    (event,) = cluster.list(EVENTS, namespace="default", field_selector=selector).items
    assert (event["count"], event["type"], event["reason"]) == (2, "Warning", "Waiting")
