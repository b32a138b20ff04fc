"""MPS: one daemon a claim, ready before kubelet is told, gone before the slice goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.claims.sharing import OFFERED
from dra.common.resources import PODS, Obj
from dra.gpu.inventory import ClaimRef
from dra.gpu.mignode import from_mignode
from dra.kube.errors import ForbiddenError, KubeError
from kubeletplugin.claims.sharing import mps as daemons
from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from sim.nvml.driverfiles import time_slice
from sim.nvml.machine import GpuSpec
from tests.helpers.folders import mounts_below
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.claims.test_holders import assert_given_back
from tests.kubeletplugin.claims.test_holders import told as told_holder
from tests.kubeletplugin.helpers.mpspods import DaemonPods, control
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig

SLICE, OTHER = "gpu-0-mig-3g20gb-9-4", "gpu-0-mig-1g5gb-19-0"
LIMITS: Obj = {"activeThreadPercentage": 40, "pinnedDeviceMemoryLimit": "4Gi"}


def mps(limits: Obj | None = None, *, kind: str = "MigDeviceConfig") -> Obj:
    sharing: Obj = {"strategy": "MPS", **({"mps": limits} if limits else {})}
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": kind, "sharing": sharing}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


@pytest.fixture
def sharing(make_rig: Callable[..., Rig]) -> Rig:
    """A node with a GPU in slices and a whole one, where MPS is enabled."""
    rig = make_rig(GpuSpec(A100), GpuSpec(A100, mig=False))
    rig.mps_image = "registry.example.com/plugin:1"
    rig.mps_pull_secrets = ("registry",)
    rig.start()
    return rig


@pytest.fixture
def pods(sharing: Rig) -> Iterator[DaemonPods]:
    made = DaemonPods(sharing)
    yield made
    made.close()


def test_a_node_says_whether_it_serves_mps_and_that_a_refusal_was_no_gpus(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100))
    rig.start()
    assert OFFERED["MPS"] not in from_mignode(rig.mignode()).capabilities
    ref = rig.claim(SLICE, config=[mps()])
    error = rig.refused(ref)
    assert "sharing.strategy 'MPS' is not enabled on this node" in error
    assert "chart: mps.enabled" in error
    assert (rig.mutations(), rig.journal()) == ([], ())
    wait_for("failure", lambda: from_mignode(rig.mignode()).failed_claims)
    [failed] = from_mignode(rig.mignode()).failed_claims
    assert (failed.claim.uid, failed.gpu) == (ref.uid, "")
    rig.stop()
    rig.mps_image = "registry.example.com/plugin:1"
    rig.start()
    wait_for("MPS", lambda: OFFERED["MPS"] in from_mignode(rig.mignode()).capabilities)


def edits(rig: Rig, ref: Any) -> Obj:
    [device] = rig.spec(ref)["devices"]
    found: Obj = device["containerEdits"]
    return found


def test_a_slice_is_shared_within_limits_that_daemon_and_clients_have(
    sharing: Rig, pods: DaemonPods
) -> None:
    ref = sharing.claim(SLICE, config=[mps(LIMITS)])
    sharing.prepared(ref)
    [pod] = pods.pods()
    [entry] = sharing.journal()
    uid = ref.uid
    assert entry.mig_uuid.startswith("MIG-")
    assert served(sharing, ref) == entry.mig_uuid
    assert control(sharing, uid, "get_default_active_thread_percentage") == "40"
    assert control(sharing, uid, "get_default_device_pinned_mem_limit 0") == "4096M"
    given = edits(sharing, ref)
    assert {e for e in given["env"] if "MPS" in e} == {
        "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4096M",
    }
    mounts = {m["containerPath"]: m for m in given["mounts"]}
    assert mounts["/tmp/nvidia-mps"]["hostPath"] == f"{sharing.roots.state}/mps/{uid}/pipe"
    assert mounts["/dev/shm"]["hostPath"] == f"{sharing.roots.state}/mps/{uid}/shm"
    for path in ("/tmp/nvidia-mps", "/dev/shm"):
        assert mounts[path]["options"][:4] == ["rw", "nosuid", "nodev", "noexec"]
    assert not any(
        "/log" in m["hostPath"].removeprefix(str(sharing.folder)) for m in mounts.values()
    )
    spec = sharing.spec(ref)
    sharing.restart()
    sharing.prepared(ref)
    assert [p["metadata"]["uid"] for p in pods.pods()] == [pod["metadata"]["uid"]]
    assert sharing.spec(ref) == spec
    assert sharing.unprepare(ref) == ""
    assert (pods.pods(), sharing.clean()) == ([], True)
    assert list((sharing.roots.state / "mps").iterdir()) == []


def test_of_a_claim_with_several_devices_the_clients_of_one_get_its_daemon(
    sharing: Rig, pods: DaemonPods
) -> None:
    """As NVIDIA's sample gpu-test5: long turns on one device, limits by MPS on another."""
    turns: Obj = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}
    whole = mps(kind="GpuConfig") | {"requests": ["r0"]}
    whole["opaque"]["parameters"]["sharing"] = turns
    clients = mps(LIMITS) | {"requests": ["r1"]}
    ref = sharing.claim("gpu-1", SLICE, config=[whole, clients])
    sharing.prepared(ref)
    uuid = sharing.machine.state().gpus[1].uuid
    assert time_slice(sharing.roots.host, uuid) == 3
    [daemon] = pods.pods()
    by_device = {e.device: e for e in sharing.journal()}
    assert served(sharing, ref) == by_device[SLICE].mig_uuid
    told = {d["name"]: d["containerEdits"] for d in sharing.spec(ref)["devices"]}
    is_client = {
        name.removeprefix(f"{ref.uid}-"): "CUDA_MPS_PIPE_DIRECTORY" in str(edits.get("env"))
        for name, edits in told.items()
    }
    assert is_client == {"gpu-1": False, SLICE: True}
    assert "CUDA_MPS" not in str(sharing.spec(ref).get("containerEdits"))
    assert "CUDA_MPS" not in str(sharing.common())
    sharing.restart()
    sharing.prepared(ref)
    assert [p["metadata"]["uid"] for p in pods.pods()] == [daemon["metadata"]["uid"]]
    assert sharing.unprepare(ref) == ""
    assert (pods.pods(), sharing.clean(), time_slice(sharing.roots.host, uuid)) == ([], True, 0)


def served(rig: Rig, ref: ClaimRef) -> str:
    """The device of a claim's daemon."""
    return (rig.roots.state / "mps" / ref.uid / "pipe/.simulated/devices").read_text().strip()


def test_a_daemon_has_the_nodes_of_its_device_in_a_dev_of_its_own(
    sharing: Rig, pods: DaemonPods
) -> None:
    """A server runs as its client's user and can make none; the host may have none."""
    ref = sharing.claim(SLICE, config=[mps()])
    sharing.prepared(ref)
    [pod] = pods.pods()
    assert "/dev" not in {m["mountPath"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    folder = sharing.roots.state / "mps" / ref.uid / "dev/dev"
    made = {
        str(f.relative_to(folder)): f.read_text() for f in folder.rglob("nvidia*") if f.is_file()
    }
    given = edits(sharing, ref)["deviceNodes"]
    common = sharing.common()["containerEdits"]["deviceNodes"]
    assert made == {
        n["path"].removeprefix("/dev/"): f"666 c {n['major']} {n['minor']}\n"
        for n in (*given, *common)
    }
    assert {"nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"} < made.keys()
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize(("knows", "mode"), [(True, "-M"), (False, "-f")])
def test_clients_of_several_users_have_one_server_where_the_driver_can(
    sharing: Rig, pods: DaemonPods, *, knows: bool, mode: str
) -> None:
    if not knows:
        (sharing.roots.host / "usr/bin/nvidia-cuda-mps-control.single-user").touch()
    ref = sharing.claim(SLICE, config=[mps(LIMITS)])
    sharing.prepared(ref)
    pipe = sharing.roots.state / "mps" / ref.uid / "pipe"
    assert (pipe / ".simulated/mode").read_text().strip() == mode
    assert control(sharing, ref.uid, "get_default_active_thread_percentage") == "40"


def test_memory_that_clients_share_outlives_the_daemons_pod(sharing: Rig, pods: DaemonPods) -> None:
    ref = sharing.claim(SLICE, config=[mps()])
    sharing.prepared(ref)
    spec = sharing.spec(ref)
    [shm] = [
        m["hostPath"] for m in edits(sharing, ref)["mounts"] if m["containerPath"] == "/dev/shm"
    ]
    Path(shm, "segment").write_text("a client's")
    [pod] = pods.pods()
    sharing.api.delete(PODS, pod["metadata"]["name"], namespace="default")

    def another() -> Obj | None:  # the janitor may make it while nobody looks
        assert sharing.daemon is not None
        sharing.daemon.janitor.tend(everything=True)
        made = [p for p in pods.pods() if p["metadata"]["uid"] != pod["metadata"]["uid"]]
        return made[0] if made else None

    again = wait_for("another", another)
    [volume] = [v for v in again["spec"]["volumes"] if v["name"] == "shm"]
    assert volume["hostPath"]["path"] == shm
    assert Path(shm, "segment").read_text() == "a client's"
    assert sharing.spec(ref) == spec


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_clients_write_has_a_bounded_file_system_of_its_own(
    sharing: Rig, pods: DaemonPods
) -> None:
    ref = sharing.claim(SLICE, config=[mps()])
    sharing.prepared(ref)
    writable = [m["hostPath"] for m in edits(sharing, ref)["mounts"] if "rw" in m["options"]]
    assert len(writable) == 2
    for path in writable:
        limits = os.statvfs(path)
        assert (limits.f_blocks * limits.f_frsize, limits.f_files) == (4 << 30, 8192)
        assert Path(path).stat().st_dev != sharing.roots.state.stat().st_dev
    sharing.restart()
    assert sharing.unprepare(ref) == ""
    assert mounts_below(sharing.folder) == []


def test_a_claim_is_not_prepared_before_its_daemon_is_ready(
    sharing: Rig, pods: DaemonPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods.runs = False
    ref = sharing.claim(SLICE, config=[mps()])
    with monkeypatch.context() as briefly:
        briefly.setattr(daemons, "DAEMON_SECONDS", 0.3)
        error = sharing.refused(ref)
    assert f"pod default/mps-{ref.uid} is not started" in error or "was just made" in error
    assert "is not ready after 0.3 s" in error
    wait_for("the rollback", sharing.clean)
    wait_for("the pod's end", lambda: pods.pods() == [])
    pods.runs = True
    sharing.prepared(ref)


def test_a_daemon_that_does_not_end_is_named_as_the_holder_and_the_slice_stays(
    sharing: Rig, pods: DaemonPods, short_patience: None
) -> None:
    ref = sharing.claim(SLICE, config=[mps()])
    sharing.prepared(ref)
    pods.holds = True
    assert sharing.unprepare(ref) == ""
    [left] = sharing.journal()
    assert left.state is State.LEFTOVER
    assert f"MPS daemon holds the device: pod default/mps-{ref.uid} is being deleted" in left.note
    assert sharing.slices() == [(0, "3g.20gb", 4, True)]
    pods.holds = False
    wait_for("the removal", lambda: tended(sharing))
    assert pods.pods() == []


def tended(rig: Rig) -> bool:
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)
    return rig.clean()


def test_a_daemon_that_crashed_or_was_deleted_is_there_again_with_its_limits(
    sharing: Rig, pods: DaemonPods
) -> None:
    ref = sharing.claim(SLICE, config=[mps(LIMITS)])
    sharing.prepared(ref)
    pods.crash(ref.uid)
    sharing.prepared(ref)
    assert control(sharing, ref.uid, "get_default_active_thread_percentage") == "40"
    [pod] = pods.pods()
    sharing.api.delete(PODS, pod["metadata"]["name"], namespace="default")
    wait_for("its end", lambda: pods.pods() == [])
    assert sharing.daemon is not None
    sharing.daemon.janitor.tend(everything=True)
    wait_for("another", lambda: pods.pods() != [])
    assert pods.pods()[0]["metadata"]["uid"] != pod["metadata"]["uid"]


def test_a_daemon_that_cannot_be_made_again_is_an_event_and_a_condition(
    sharing: Rig, pods: DaemonPods
) -> None:
    def refuse(method: str, path: str) -> KubeError | None:
        return ForbiddenError("no", status=403) if "/pods" in path else None

    def ready(*, tended: bool = True) -> str:
        assert sharing.daemon is not None
        if tended:  # a round leaves out a claim on which the janitor's own thread is at work
            sharing.daemon.janitor.tend(everything=True)
        assert sharing.statuses_idle()
        [shown] = sharing.claim_status(ref)
        return str(next(c["reason"] for c in shown["conditions"] if c["type"] == "Ready"))

    ref = sharing.claim(SLICE, config=[mps()])
    sharing.prepared(ref)
    assert ready(tended=False) == "Prepared"
    sharing.http.refuse = refuse
    pods.crash(ref.uid)
    pods.runs = False
    wait_for("the condition", lambda: ready() == "MpsDaemonDown")
    wait_for("the event", lambda: any(r == "MpsDaemonDown" for r, _ in events(sharing, ref.name)))
    [message] = {m for r, m in events(sharing, ref.name) if r == "MpsDaemonDown"}
    assert "grant this plugin's service account get, list, create and delete on pods" in message
    sharing.http.refuse = lambda method, path: None
    pods.runs = True
    wait_for("the daemon", lambda: control(sharing, ref.uid, "get_server_list") == "")
    wait_for("the condition", lambda: ready() == "Prepared")


def test_a_node_is_ready_while_daemons_of_claims_left_half_made_are_not(
    sharing: Rig, pods: DaemonPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [sharing.claim(d, config=[mps()], expected=True) for d in (SLICE, OTHER)]
    for ref in refs:
        sharing.prepared(ref)
    sharing.stop()
    pods.runs = False
    for ref in refs:
        pods.crash(ref.uid)
    journal = Journal(sharing.roots.state / "journal.json")
    journal.put(*(e.at(State.CI_CREATED, remade=False) for e in journal.entries()))
    monkeypatch.setattr(daemons, "DAEMON_SECONDS", 3600.0)
    monkeypatch.setattr("kubeletplugin.claims.janitor.RECOVERY_SECONDS", 0.2)
    sharing.start()
    assert {e.state for e in sharing.journal()} == {State.CI_CREATED}
    pods.runs = True
    for ref in refs:
        sharing.prepared(ref)


def test_after_a_reboot_the_daemon_serves_the_slice_that_is_made_again(
    sharing: Rig, pods: DaemonPods
) -> None:
    ref = sharing.claim(SLICE, config=[mps(LIMITS)])
    sharing.prepared(ref)
    before = pods.pods()
    sharing.stop()
    sharing.machine.reboot()
    sharing.start()
    sharing.prepared(ref)
    [entry], [pod] = sharing.journal(), pods.pods()
    assert pod["metadata"]["uid"] != before[0]["metadata"]["uid"]
    assert served(sharing, ref) == entry.mig_uuid


def test_daemons_of_no_claim_are_swept(sharing: Rig, pods: DaemonPods) -> None:
    ref, gone = sharing.claim(SLICE, config=[mps()]), sharing.claim(OTHER, config=[mps()])
    sharing.prepared(ref)
    sharing.prepared(gone)
    sharing.stop()
    sharing.delete_claim(gone)
    journal = Journal(sharing.roots.state / "journal.json")
    journal.remove(*journal.of_claim(gone.uid))
    sharing.start()
    wait_for(
        "the sweep", lambda: [p["metadata"]["name"] for p in pods.pods()] == [f"mps-{ref.uid}"]
    )


def test_the_right_or_the_program_that_is_missing_is_named(sharing: Rig) -> None:
    def refuse(method: str, path: str) -> KubeError | None:
        return ForbiddenError("no", status=403) if "/pods" in path else None

    sharing.http.refuse = refuse
    error = sharing.refused(sharing.claim(SLICE, config=[mps()]))
    assert "grant this plugin's service account get, list, create and delete on pods" in error
    sharing.http.refuse = lambda method, path: None
    (sharing.roots.host / "usr/bin/nvidia-cuda-mps-server").unlink()
    error = sharing.refused(sharing.claim(SLICE, config=[mps()]))
    assert "no MPS without nvidia-cuda-mps-server, not found below" in error


def test_the_daemon_stays_while_a_pod_has_the_slice_of_a_claim_that_is_gone(
    sharing: Rig, pods: DaemonPods
) -> None:
    ref = sharing.claim(SLICE, config=[mps(LIMITS)])
    sharing.prepared(ref)
    sharing.run_pod("holder", ref)
    sharing.delete_claim(ref)
    assert "default/holder" in told_holder(sharing, ref)
    sharing.restart()
    assert "default/holder" in told_holder(sharing, ref)
    assert [e.claim for e in sharing.journal()] == [ref]
    assert len(pods.pods()) == 1
    assert control(sharing, ref.uid, "get_default_active_thread_percentage") == "40"
    sharing.pods.clear()
    assert_given_back(sharing, ref)
    assert pods.pods() == []
