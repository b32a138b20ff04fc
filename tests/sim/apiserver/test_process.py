"""The server as a process: it says where it listens, and it ends when it is told to."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.apiserver.running import running_server
from tests.sim.conformance.helpers.builders import DRA, claim, counters, device, resource_slice
from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_it_ends_on_sigterm_although_clients_watch(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        api = Api(server.kubeconfig)
        watches = [api.watch("/api/v1/pods", timeoutSeconds=900) for _ in range(3)]
    # Leaving the block asserts that it ends in time, with exit code 0 and an empty standard error.
    for watch in watches:
        assert watch.rest() == []


def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "sim", "apiserver", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_many_watches_and_writes_are_served_at_once(tmp_path: Path) -> None:
    """Fifty watches each see every one of 60 writes, in order."""
    with running_server(tmp_path) as server:
        api = Api(server.kubeconfig)
        path = "/api/v1/namespaces/default/configmaps"
        watches = [api.watch(path, timeoutSeconds=900) for _ in range(50)]
        names = [f"m{index:03}" for index in range(60)]
        for name in names:
            api.post(path, {"metadata": {"name": name}}).ok()
        for watch in watches:
            seen = [watch.next().name for _ in names]
            assert seen == names
        for watch in watches:
            watch.__exit__()
        api.close()


def test_no_kubernetes_model_is_needed_to_serve(request: pytest.FixtureRequest) -> None:
    script = (
        "import sys, sim.apiserver.cli; "
        "print([m for m in sys.modules if m.split('.')[0] in ('kubernetes', 'grpc', 'pynvml')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=request.config.rootpath,
        check=True,
    )
    assert done.stdout == "[]\n"


# -- features of this server alone: counters of writes, a short history, gates


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
