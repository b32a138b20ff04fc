"""Pods on the kubelet stand-in, with a claim that a plugin prepares."""

from __future__ import annotations

import json

from dra.common.resources import EVENTS, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from kubeletplugin.host.podresources import PodResources
from sim.kubelet.kubelet import Kubelet, Settings
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.kubelet.conftest import NODE, MakePlugin, bind, bind_pod
from tests.sim.kubelet.fakeplugin import FakePlugin
from tests.sim.standins import DRIVER, get_pod, gone, phase


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
    assert plugin.calls == [("prepare", "v1", (claim["metadata"]["uid"],))]


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


def test_pod_resources_leave_out_init_containers_claims_that_are_not_named_and_pods_that_are_gone(
    api: KubeApi, plugin: FakePlugin, claim: Obj, settings: Settings
) -> None:
    kubelet = PodResources(settings.root / "pod-resources/kubelet.sock")

    def listed() -> dict[str, set[str]]:
        return {p.name: {d.claim for d in p.claim_devices} for p in kubelet.pods()}

    held = [{"name": "slice"}]
    containers: dict[str, tuple[list[Obj], list[Obj]]] = {
        "main": ([], held),
        "sidecar": ([{"name": "s", "restartPolicy": "Always", "resources": {"claims": held}}], []),
        "init": ([{"name": "i", "resources": {"claims": held}}], []),
        "nobody": ([], []),
    }
    for name, (init, claims) in containers.items():
        body = standins.pod(name, claim={"resourceClaimName": "shared"})
        body["spec"]["initContainers"] = [{"image": "app", **each} for each in init]
        body["spec"]["containers"] = [
            {"name": "c", "image": "app", "resources": {"claims": claims}}
        ]
        bind_pod(api, body, claim)
        _runs(api, name)
    assert listed() == {"main": {"shared"}, "sidecar": {"shared"}, "init": set(), "nobody": set()}
    assert plugin.uids("unprepare") == []
    api.patch(RESOURCE_CLAIMS, "shared", {"metadata": {"finalizers": None}}, namespace="default")
    api.delete(RESOURCE_CLAIMS, "shared", namespace="default")
    api.delete(PODS, "main", namespace="default", grace_seconds=0)
    wait_for("end", lambda: listed() == {"sidecar": {"shared"}, "init": set(), "nobody": set()})


def test_a_claim_that_is_not_reserved_for_the_pod_keeps_it_from_starting(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    api.create(PODS, standins.pod("a", claim={"resourceClaimName": "shared"}, node=NODE))
    wait_for("the event", lambda: _events(api, "FailedPrepareDynamicResources"))
    assert "not in status.reservedFor" in _events(api, "FailedPrepareDynamicResources")[0]
    assert plugin.calls == []
    assert phase(api, "a") == "Pending"


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


def test_a_pod_whose_command_sleeps_ends_by_itself_unless_it_is_started_again(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    for name, policy, command in (
        ("ends", "Never", "nvidia-smi -L; sleep 0.2 && echo"),
        ("again", "Always", "sleep 0.1"),
        ("forever", "OnFailure", "sleep infinity"),
    ):
        body = standins.pod(name, claim={"resourceClaimName": "shared"}, restartPolicy=policy)
        body["spec"]["containers"][0]["command"] = ["sh", "-c", command]
        bind_pod(api, body, claim)
    wait_for("its end", lambda: phase(api, "ends") == "Succeeded")
    (state,) = get_pod(api, "ends")["status"]["containerStatuses"]
    assert state["state"]["terminated"]["exitCode"] == 0
    for name in ("again", "forever"):
        _runs(api, name)
    assert plugin.uids("unprepare") == []
    for name in ("again", "forever"):
        api.delete(PODS, name, namespace="default", grace_seconds=0)
    wait_for("unprepare", lambda: plugin.uids("unprepare") == [claim["metadata"]["uid"]])


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


def test_claims_of_a_force_deleted_pod_are_given_up(
    api: KubeApi, plugin: FakePlugin, claim: Obj
) -> None:
    bind(api, "a", claim)
    _runs(api, "a")
    api.delete(PODS, "a", namespace="default", grace_seconds=0)
    wait_for("unprepare", lambda: plugin.uids("unprepare") == [claim["metadata"]["uid"]])


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


# -- the registration dance, and ResourceSlices of drivers that are not there


def test_a_plugin_is_registered_under_the_first_version_of_its_list_that_kubelet_knows(
    api: KubeApi, kubelet: Kubelet, make_plugin: MakePlugin, claim: Obj
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"))
    wait_for("registration", lambda: plugin.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert plugin.calls[0][:2] == ("prepare", "v1beta1")


def test_a_plugin_without_a_known_version_is_told_so(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(versions=("v9.DRAPlugin",))
    wait_for("refusal", lambda: plugin.statuses)
    assert "no supported service in ['v9.DRAPlugin']" in plugin.statuses[0][1]


def test_a_plugin_is_gone_with_its_socket_and_back_with_a_new_one(
    kubelet: Kubelet, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin()
    wait_for("the first word", lambda: plugin.statuses == [(True, "")])
    plugin.stop()
    wait_for("de-registration", lambda: kubelet.plugins.get(DRIVER) is None)
    plugin.start()
    wait_for("registration", lambda: kubelet.plugins.get(DRIVER))
    wait_for("the second word", lambda: plugin.statuses == [(True, ""), (True, "")])


def test_during_a_rolling_update_the_newest_plugin_is_called(
    api: KubeApi, plugin: FakePlugin, make_plugin: MakePlugin, claim: Obj
) -> None:
    newer = make_plugin(socket="dra-2.sock")
    wait_for("registration", lambda: newer.statuses == [(True, "")])
    bind(api, "a", claim)
    wait_for("running", lambda: phase(api, "a") == "Running")
    assert (len(plugin.calls), len(newer.calls)) == (0, 1)
