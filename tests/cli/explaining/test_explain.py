"""``kubectl mig explain`` names what is truly in the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from dra.common.resources import NODES, PODS, RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from tests.cli.conftest import Mig
from tests.cli.explaining.situations import SITUATIONS, WAITS, Situation, all_taken, waiting_pod
from tests.cli.world import World
from tests.controller.helpers.objects import allocated, gpu, instance, pod, request


@pytest.fixture
def classes(world: World) -> World:
    world.add_classes("1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    return world


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_true_blocker_comes_first(situation: Situation, classes: World, mig: Mig) -> None:
    situation.build(classes)
    if situation.leads:
        classes.lead()
    ran = mig("explain", WAITS, "-o", "json")
    found = ran.json
    assert (ran.code, found["state"]) == (1, "Waiting")
    findings = {f["reason"]: f["message"] for f in found["findings"]}
    assert found["reason"] == situation.reason, findings
    for words in situation.says:
        assert words in findings[situation.reason]


def test_the_claim_says_the_same_as_its_pod(classes: World, mig: Mig) -> None:
    all_taken(classes)
    classes.lead()
    by_pod, by_claim = (mig("explain", s, "-o", "json").json for s in (WAITS, "claim/wanted"))
    assert by_claim["object"]["kind"] == "ResourceClaim"
    assert by_claim["findings"] == by_pod["findings"]
    assert by_claim["nodes"] == by_pod["nodes"]


@pytest.mark.parametrize("words", [("node", "a"), ("pod",) * 3, ("pod/",), ("pod", "a/b")])
def test_what_is_no_pod_and_no_claim_is_refused_with_what_is_taken(
    mig: Mig, words: tuple[str, ...]
) -> None:
    ran = mig("explain", *words)
    assert ran.code == 2
    assert "pod " in ran.err
    assert "claim" in ran.err


def test_text_names_blockers_per_gpu_and_the_remedy(classes: World, mig: Mig) -> None:
    all_taken(classes)
    classes.lead()
    shown = mig("explain", f"pod/{WAITS}").out
    assert shown.startswith(
        "pod default/waiting waits\n  NoRoom: node-a gpu-0: no room for 3g.20gb"
    )
    assert "kubectl mig profiles" in shown
    assert "gpu-0  no room for 3g.20gb (blocked by claim default/first of pod trainer-1" in shown


def test_many_nodes_are_counted_and_named_and_each_shown_if_asked_for(
    classes: World, mig: Mig
) -> None:
    for number in range(1, 41):
        off = gpu(0, f"node-{number}", mig=False)
        classes.add_node(f"node-{number}", dataclasses.replace(off, reason="MIGDisabled"))
    waiting_pod(classes, request("mig-3g.20gb"))
    classes.lead()
    shown = mig("explain", f"pod/{WAITS}").out
    assert shown.count("has no such device (MIG is off)") <= 2  # the finding and the nodes
    assert "  40 nodes MIGDisabled: node-1, node-2, node-3, node-4, node-5 and 35 more;" in shown
    wide = mig("explain", f"pod/{WAITS}", "-o", "wide").out
    assert wide.count("  MIGDisabled\n") == 40


def test_a_claim_without_a_pod_waits_for_one(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.add_claim("lonely")
    found = mig("explain", "lonely", "-o", "json").json
    assert found["reason"] == "NoPod"
    assert found["nodes"][0]["reason"] == "Fits"


def test_a_running_pod_is_told_where_its_slice_is(classes: World, mig: Mig) -> None:
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="runner")
    uid = classes.api.get(RESOURCE_CLAIMS, "c", namespace="default")["metadata"]["uid"]
    made = instance("3g.20gb", 4)
    made = structs.replace(made, claim=ClaimRef("default", "c", uid), uuid="MIG-1")
    classes.add_node("node-a", gpu(0, "node-a", instances=(made,)))
    ran = mig("explain", "runner")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "pod default/runner runs",
        "  claim default/c: 3g.20gb at 4:4 of gpu-0 on node-a: MIG-1, prepared",
    ]


def test_a_bound_pod_that_cannot_be_prepared_says_why(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    held = classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "PrepareFailedPermanently",
        "message": "GPU is lost",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    device = {"driver": "mig.dra.dev", "pool": "node-a-pool", "device": "gpu-0-mig-3g20gb-9-4"}
    status = {**held["status"], "devices": [{**device, "conditions": [condition]}]}
    classes.set_status(RESOURCE_CLAIMS, held, status)
    classes.add_pod(WAITS, "c", nodeName="node-a")
    found = mig("explain", WAITS, "-o", "json").json
    assert (found["state"], found["reason"]) == ("Starting", "PrepareFailedPermanently")
    assert "GPU is lost" in found["findings"][0]["message"]
    assert mig("explain", WAITS).out.count("GPU is lost") == 1


def test_a_bound_pod_without_a_plugin_on_its_node_says_so(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    classes.add_pod(WAITS, "c", nodeName="node-a")
    classes.fall_silent("node-a", minutes=3)
    found = mig("explain", WAITS, "-o", "json").json
    assert (found["state"], found["reason"]) == ("Starting", "PluginNotRunning")


def test_what_is_not_there_is_not_found(world: World, mig: Mig) -> None:
    for subject in ("nobody", "pod/nobody", "claim/nobody"):
        ran = mig("explain", subject)
        assert (ran.code, ran.out) == (4, "")
    assert mig("explain", "node/n").code == 2


def test_a_pod_that_has_ended_is_no_finding(world: World, mig: Mig) -> None:
    made = world.add_pod("done")
    world.set_status(PODS, made, {"phase": "Succeeded"})
    assert mig("explain", "done").code == 0


def by_limits(world: World, name: str, limit: str = "nvidia.com/mig-1g.5gb") -> None:
    body = pod(name)
    body["spec"]["containers"] = [
        {"name": "c", "image": "i", "resources": {"limits": {limit: "1"}}}
    ]
    world.api.create(PODS, body)


def test_a_pod_that_asks_by_limits_is_told_who_serves_that(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    by_limits(classes, "old-style")
    ran = mig("explain", "old-style")
    words = " ".join(ran.out.split())
    assert ran.code == 1
    assert "AskedByLimits: the pod has no resource claim and asks by limits" in words
    assert "nvidia.com/mig-1g.5gb: 1" in words
    assert "this cluster has none" in words
    assert "> ask by a resource claim" in words
    assert "kubectl mig convert prints" in words
    assert "namespace with label mig.dra.dev/limits=claims" in words


@pytest.mark.parametrize("limit", ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage"])
def test_a_pod_that_asks_by_memory_is_told_where_that_becomes_a_claim(
    classes: World, mig: Mig, limit: str
) -> None:
    by_limits(classes, "of-hami", limit)
    words = " ".join(mig("explain", "of-hami").out.split())
    assert f"asks by limits: {limit}: 1. That is served only as claims" in words
    assert "namespace with label mig.dra.dev/limits=claims" in words


@pytest.mark.parametrize("limit", ["mig.das.com/1g.5gb", "instaslice.redhat.com/mig-1g.5gb"])
def test_a_pod_that_asks_by_names_of_other_systems_is_told_what_to_write(
    classes: World, mig: Mig, limit: str
) -> None:
    by_limits(classes, "of-das", limit)
    words = " ".join(mig("explain", "of-das").out.split())
    assert f"{limit}: 1: nothing here serves names of other systems" in words
    assert f"write nvidia.com/mig-1g.5gb for {limit}" in words


def test_a_pod_that_asks_for_gpus_alone_is_told_what_lint_says_of_it(
    classes: World, mig: Mig, tmp_path: Path
) -> None:
    by_limits(classes, "whole", "nvidia.com/gpu")
    (shown,) = mig("explain", "whole", "-o", "json").json["findings"]
    assert shown["reason"] == "AskedByLimits"
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(classes.api.get(PODS, "whole", namespace="default")))
    (remark,) = mig("lint", str(file), "-o", "json").json["remarks"]
    assert "write a claim of class gpu.dra.dev" in remark["message"]
    assert shown["message"].endswith(remark["message"])


def test_a_pod_whose_class_is_nobodys_is_told_that_it_does_not_exist(
    classes: World, mig: Mig
) -> None:
    waiting_pod(classes, request("r", "of-nobody"))
    (shown,) = mig("explain", WAITS, "-o", "json").json["findings"]
    assert shown["message"] == (
        "none of its claims asks for devices of this driver: DeviceClass 'of-nobody' does not "
        "exist; kubectl get deviceclasses lists all"
    )


def test_what_a_finding_says_no_event_and_no_node_says_again(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    waiting_pod(classes, request("a", "mig-4g.20gb"), request("b", "mig-7g.40gb"))
    classes.lead()
    message = "no room for 1 x 4g.20gb, 1 x 7g.40gb together"
    about = classes.api.get(PODS, WAITS, namespace="default")
    classes.tell(about, "WaitingForSlice", f"1 node - node-a: {message}")
    scheduler = "default-scheduler"
    classes.tell(about, "FailedScheduling", "0/1 nodes are available", source=scheduler)
    said = " ".join(mig("explain", WAITS).out.split())
    assert said.count(message) == 1
    assert "0/1 nodes are available" in said


def test_a_pod_that_was_served_by_limits_is_told_where_its_slice_is(
    classes: World, mig: Mig
) -> None:
    classes.add_node("node-a")
    classes.hold("made", "node-a", "gpu-0-mig-1g5gb-19-0")
    by_limits(classes, "served")
    found = classes.api.get(PODS, "served", namespace="default")
    extended = {"resourceClaimName": "made", "requestMappings": []}
    status = {"phase": "Running", "extendedResourceClaimStatus": extended}
    classes.set_status(PODS, found, status)
    classes.reserve("made", found)
    assert "claim default/made: 1g.5gb at 0:1" in mig("explain", "served").out


@pytest.mark.parametrize(
    ("mig_mode", "why", "remedy"),
    [
        (False, "no GPU is in MIG mode", "> turn it on (nvidia-smi"),
        (True, "no controller leads", "> see that the controller's Deployment runs"),
    ],
)
def test_a_class_that_was_not_made_is_not_called_a_wrong_name(
    world: World, mig: Mig, why: str, remedy: str, *, mig_mode: bool
) -> None:
    world.add_node("node-a", gpu(0, "node-a", mig=mig_mode))
    world.add_claim("wanted", request("r", "mig-1g.5gb"))
    world.add_pod("waits", "wanted")
    shown = " ".join(mig("explain", "waits").out.split())
    for words in ("NoSuchDeviceClass", why, remedy):
        assert words in shown


@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
def test_whoever_would_have_others_ended_is_told_whom(
    classes: World, mig: Mig, policy: str
) -> None:
    classes.add_node("node-a", cpu="1")
    for name in ("least", "less", "equal"):
        priority = 10 if name == "equal" else 0
        classes.add_pod(name, nodeName="node-a", cpu="300m", priority=priority)
    classes.lead()
    classes.add_claim("wanted")
    classes.add_pod(WAITS, "wanted", cpu="500m", priority=10, preemptionPolicy=policy)
    found = mig("explain", WAITS, "-o", "json").json
    first, *rest = found["findings"]
    if policy == "Never":
        assert first["reason"] == "InsufficientResources"
        return
    assert (found["state"], first["reason"]) == ("Waiting", "PreemptsOthers")
    assert "served on node-a once kube-scheduler has ended 2 pods" in first["message"]
    assert "(default/least, default/less)" in first["message"]
    assert [each["reason"] for each in rest] == ["InsufficientResources"]


@pytest.mark.parametrize(
    ("used", "says"),
    [
        ([], "no container uses claim 'c'"),
        ([{"name": "c", "request": "gpu"}], "has no request 'gpu'; there are: r"),
    ],
)
def test_a_running_pod_whose_containers_get_no_device_is_told_so(
    classes: World, mig: Mig, used: list[dict[str, str]], says: str
) -> None:
    classes.add_node("node-a")
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    container = {"name": "main", "image": "none", "resources": {"claims": used}}
    classes.add_pod("p", "c", running=True, nodeName="node-a", containers=[container])
    found = mig("explain", "p", "-o", "json").json
    assert (found["state"], found["reason"]) == ("Running", "DeviceNotUsed")
    assert says in found["findings"][0]["message"]


def test_a_pod_that_is_being_deleted_says_what_it_waits_for(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="p")
    classes.api.delete(PODS, "p", namespace="default")
    pod = classes.api.get(PODS, "p", namespace="default")
    classes.tell(pod, "Killing", "Stopping container main", source="kubelet")
    found = mig("explain", "p", "-o", "json").json
    assert (found["state"], found["reason"]) == ("Terminating", "PodTerminating")
    message = found["findings"][0]["message"]
    for words in (pod["metadata"]["deletionTimestamp"], "kubelet on node-a", "Killing: Stopping"):
        assert words in message
    held = {"metadata": {"finalizers": ["example.com/keep"]}}
    classes.hold("d", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="q")
    classes.api.patch(PODS, "q", held, namespace="default")
    classes.api.delete(PODS, "q", namespace="default")
    assert "it waits for its finalizers example.com/keep" in mig("explain", "q").out
    classes.fall_silent("node-a", minutes=3)
    shown = mig("explain", "p").out
    assert shown.startswith("pod default/p is being deleted\n")
    assert "node node-a: its plugin has been silent for 3m\n    > look at the plugin's" in shown
    classes.api.delete(NODES, "node-a")
    classes.add_node("node-b")
    assert "node node-a does not exist any more" in mig("explain", "p").out


def test_a_lease_that_is_not_renewed_any_more_is_told_before_it_runs_out(
    classes: World, mig: Mig
) -> None:
    classes.add_node("node-a")
    classes.add_claim("wanted", request("r", "mig-1g.5gb"))
    classes.add_pod(WAITS, "wanted")
    classes.lead()
    assert "may be gone" not in mig("explain", WAITS).out
    classes.unlead()
    classes.lead(seconds_ago=9)
    ran = mig("explain", WAITS, "-o", "json").json
    assert ran["reason"] == "AboutToBeAllocated"
    assert "its lease was renewed 9s ago" in ran["findings"][0]["message"].replace("10s", "9s")


def test_a_claim_that_was_made_for_the_pod_and_deleted_is_not_to_be_created(
    classes: World, mig: Mig
) -> None:
    entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    made = classes.add_pod("p", resourceClaims=[entry])
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]}
    classes.set_status(PODS, made, {"phase": "Running", **status})
    (found,) = mig("explain", "p", "-o", "json").json["findings"]
    assert found["reason"] == "ClaimDeleted"
    assert found["remedy"].endswith("delete the pod")


def test_a_claim_that_is_being_deleted_names_what_holds_it(classes: World, mig: Mig) -> None:
    classes.add_node("node-a")
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4", pod_name="p")
    classes.set_finalizers("c")
    classes.hold("d", "node-a", "gpu-0-mig-3g20gb-9-0", pod_name="q")
    classes.set_finalizers("d")
    classes.api.delete(RESOURCE_CLAIMS, "d", namespace="default")
    running = mig("explain", "q", "-o", "json").json
    assert (running["state"], running["reason"]) == ("Running", "ClaimTerminating")
    assert [f["reason"] for f in mig("explain", "claim/d", "-o", "json").json["findings"]] == [
        "ClaimTerminating"
    ]
    ended = classes.api.get(PODS, "p", namespace="default")
    classes.set_status(PODS, ended, {"phase": "Succeeded"})
    classes.api.delete(RESOURCE_CLAIMS, "c", namespace="default")
    found = mig("explain", "claim/c", "-o", "json").json
    assert (found["state"], found["reason"]) == ("Ended", "ClaimTerminating")
    assert found["findings"][0]["message"].endswith("held by p, mig.dra.dev/allocation")


def test_a_pod_that_may_not_be_where_its_claim_is_is_told_so(classes: World, mig: Mig) -> None:
    for name in ("node-a", "node-b"):
        classes.add_node(name, labels={"kubernetes.io/hostname": name})
    classes.hold("c", "node-a", "gpu-0-mig-3g20gb-9-4")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = classes.add_pod("first", "c", running=True, nodeName="node-a")
    classes.api.patch(PODS, "first", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    assert made
    classes.add_pod("second", "c", affinity=apart)
    (found,) = mig("explain", "second", "-o", "json").json["findings"]
    assert found["reason"] == "ClaimElsewhere"
    assert "claim default/c is allocated on node-a alone" in found["message"]


def test_a_selector_that_misses_a_profile_by_little_is_told_before_and_after(
    classes: World, mig: Mig
) -> None:
    classes.add_node("node-a")
    memory = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('20Gi')) >= 0"
    asked = request("r", "mig.dra.dev", memory)
    made = classes.add_claim("c", asked)
    classes.add_pod(WAITS, "c")
    waiting = mig("explain", WAITS, "-o", "json").json["findings"]
    status = allocated(made, "node-a", "gpu-0-mig-7g40gb-0-0")["status"]
    classes.set_status(RESOURCE_CLAIMS, made, status)
    seated = mig("explain", WAITS, "-o", "json").json["findings"]
    for found in (waiting, seated):
        (missed,) = [each for each in found if each["reason"] == "ProfileMissed"]
        assert "3g.20gb with 19968Mi misses by little: the next is 7g.40gb" in missed["message"]


def test_a_running_pod_on_a_node_that_is_gone_or_not_ready_is_told_so(
    classes: World, mig: Mig
) -> None:
    unreachable = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    classes.add_node("node-a", taints=[unreachable])
    for name, where in (("p", "node-a"), ("q", "node-gone")):
        classes.hold(f"c-{name}", where, "gpu-0-mig-3g20gb-9-4", pod_name=name)
    found = {name: mig("explain", name, "-o", "json").json for name in ("p", "q")}
    assert [each["state"] for each in found.values()] == ["Running"] * 2
    assert [each["reason"] for each in found.values()] == ["NodeNotReady", "NoSuchNode"]
    shown = mig("explain", "q").out
    assert "claim default/c-q: gpu-0-mig-3g20gb-9-4 on node-gone: allocated" in shown
    classes.add_bare_node("node-gone")
    shown = mig("explain", "q").out
    assert (
        "PluginNotRunning: node node-gone: it has no MigNode\n    > look at the plugin's" in shown
    )
