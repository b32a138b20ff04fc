"""Pods on the kubelet stand-in, with a claim that a plugin prepares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra.common.resources import EVENTS, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from sim.kubelet.containers import container_view, read_spec, resolve
from sim.kubelet.kubelet import Settings
from sim.kubelet.plugins import ContainerError
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.kubelet.conftest import NODE, bind, bind_pod
from tests.sim.kubelet.fakeplugin import FakePlugin
from tests.sim.standins import get_pod, gone, phase


def _runs(api: KubeApi, name: str) -> None:
    wait_for(f"{name} running", lambda: phase(api, name) == "Running")


def _events(api: KubeApi, reason: str) -> list[str]:
    found = api.list(EVENTS, namespace="default").items
    return [event["message"] for event in found if event["reason"] == reason]


def test_a_pod_runs_with_what_its_claims_cdi_spec_gives(
    api: KubeApi, plugin: FakePlugin, claim: Obj, settings: Settings
) -> None:
    pod = bind(api, "a", claim)
    _runs(api, "a")
    status = get_pod(api, "a")["status"]
    assert status["containerStatuses"][0]["state"].keys() == {"running"}
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    file = settings.root / "pods" / pod["metadata"]["uid"] / "containers" / "main.json"
    view = json.loads(file.read_text())
    assert view["env"] == {"COMMON": "1", "SLICE": "one"}
    assert [(d["path"], d["major"], d["minor"]) for d in view["devices"]] == [
        ("/dev/nvidia0", 195, 0)
    ]
    assert plugin.calls == [("prepare", (claim["metadata"]["uid"],))]


def test_only_containers_that_name_the_claim_get_its_devices(
    api: KubeApi, plugin: FakePlugin, claim: Obj, settings: Settings
) -> None:
    plugin.request_names = ("r0",)
    body = standins.pod("a", claim={"resourceClaimName": "shared"})
    references: dict[str, list[Obj]] = {
        "whole": [{"name": "slice"}],
        "request": [{"name": "slice", "request": "r0"}],
        "other": [{"name": "slice", "request": "r1"}],
        "none": [],
    }
    body["spec"]["containers"] = [
        {"name": n, "image": "app", "resources": {"claims": claims}}
        for n, claims in references.items()
    ]
    pod = bind_pod(api, body, claim)
    _runs(api, "a")
    folder = settings.root / "pods" / pod["metadata"]["uid"] / "containers"
    seen = {n: json.loads((folder / f"{n}.json").read_text())["cdiDevices"] for n in references}
    device = [f"k8s.test/claim={claim['metadata']['uid']}"]
    assert seen == {"whole": device, "request": device, "other": [], "none": []}


def test_a_failed_prepare_is_retried_until_it_succeeds(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    plugin.prepare_error = "slice is busy"
    bind(api, "a", claim)
    wait_for("two calls", lambda: len(plugin.uids("prepare")) >= 2)
    wait_for("the event", lambda: _events(api, "FailedPrepareDynamicResources"))
    assert "slice is busy" in "".join(_events(api, "FailedPrepareDynamicResources"))
    assert phase(api, "a") == "Pending"
    plugin.prepare_error = ""
    _runs(api, "a")


def test_a_deleted_pod_is_unprepared_before_it_is_gone(
    api: KubeApi, plugin: FakePlugin, claim: Obj, settings: Settings
) -> None:
    pod = bind(api, "a", claim)
    _runs(api, "a")
    plugin.unprepare_error = "still in use"
    api.delete(PODS, "a", namespace="default")
    wait_for("two tries", lambda: len(plugin.uids("unprepare")) >= 2)
    assert phase(api, "a") == "Running"
    plugin.unprepare_error = ""
    wait_for("the end", lambda: gone(lambda: get_pod(api, "a")))
    folder = settings.root / "pods" / pod["metadata"]["uid"]
    wait_for("clean-up", lambda: not folder.exists())


def test_a_shared_claim_is_prepared_once_and_unprepared_after_the_last_pod(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    bind(api, "a", claim)
    _runs(api, "a")
    bind(api, "b", claim)
    _runs(api, "b")
    assert len(plugin.uids("prepare")) == 1
    api.delete(PODS, "a", namespace="default")
    wait_for("a gone", lambda: gone(lambda: get_pod(api, "a")))
    assert plugin.uids("unprepare") == []
    api.delete(PODS, "b", namespace="default")
    wait_for("b gone", lambda: gone(lambda: get_pod(api, "b")))
    assert plugin.uids("unprepare") == [claim["metadata"]["uid"]]


def test_a_claim_that_was_replaced_under_its_name_waits_for_the_old_one(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    bind(api, "a", claim)
    _runs(api, "a")
    plugin.unprepare_error = "still in use"
    api.delete(PODS, "a", namespace="default", grace_seconds=0)
    api.delete(RESOURCE_CLAIMS, "shared", namespace="default")
    wait_for("deletion", lambda: gone(lambda: standins.get_claim(api, "shared")))
    standins.create_claim(api, "shared")
    bind(api, "b", standins.allocate(api, "shared", NODE))
    wait_for("the event", lambda: _events(api, "FailedPrepareDynamicResources"))
    assert "previous pod force-deleted" in _events(api, "FailedPrepareDynamicResources")[0]
    plugin.unprepare_error = ""
    _runs(api, "b")


# -- CDI specs as the stand-in for a container runtime reads them


def _write(path: Path, *names: str, **more: object) -> None:
    devices = [{"name": n, "containerEdits": {"env": [f"D_{n}=1"]}} for n in names]
    path.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "v.x/c", "devices": devices} | more))


@pytest.mark.parametrize(
    "change",
    [
        {"cdiVersion": None},
        {"kind": "nothing"},
        {"devices": [{"name": "-x"}]},
        {"devices": [{"name": "x"}, {"name": "x"}]},
    ],
    ids=str,
)
def test_a_spec_that_breaks_the_rules_offers_nothing(tmp_path: Path, change: Obj) -> None:
    _write(tmp_path / "a.json", "x", **change)
    with pytest.raises(ValueError, match=r"cdiVersion|kind|device"):
        read_spec(tmp_path / "a.json")
    with pytest.raises(ContainerError, match="unresolvable"):
        resolve(tmp_path, ["v.x/c=x"])


def _view(edits: Obj) -> Obj:
    return container_view({"name": "main", "env": [{"name": "A", "value": "1"}]}, [], [edits])


def test_a_mount_whose_source_is_missing_fails_the_container(tmp_path: Path) -> None:
    mount = {"hostPath": str(tmp_path), "containerPath": "/x", "options": ["ro"]}
    assert _view({"mounts": [mount]})["mounts"][0]["options"] == ["ro"]
    with pytest.raises(ContainerError, match="error mounting"):
        _view({"mounts": [mount | {"hostPath": str(tmp_path / "missing")}]})
