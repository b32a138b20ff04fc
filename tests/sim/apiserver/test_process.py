"""The server as a process: it says where it listens, and it ends when it is told to."""

from __future__ import annotations

from pathlib import Path

from tests.sim.apiserver.running import running_server
from tests.sim.conformance.helpers.builders import DRA, claim
from tests.sim.conformance.helpers.client import Api


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
