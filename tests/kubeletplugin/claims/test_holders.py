"""Devices of claims that kubelet was told of are given away once no pod can have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin.host.podresources import PodDevices, PodResources
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import SLICE, lose_journal
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import A100, Rig

SHARE, WHOLE, IDLE = "gpu-0-mig-2g10gb-14-0-share", "gpu-0", "gpu-0-mig-2g10gb-14-2"
UID = "9f2c8a34-55d4-4a0e-8b7a-0d7a1c2b3e4f"
OTHER = "0c1d2e3f-55d4-4a0e-8b7a-0d7a1c2b3e4f"

pytestmark = pytest.mark.usefixtures("short_patience")


@pytest.fixture
def node(make_rig: Callable[..., Rig], request: pytest.FixtureRequest) -> Rig:
    """A node that shares slices and keeps what is released; its GPU is as the device needs it."""
    rig = make_rig(GpuSpec(A100, mig=getattr(request, "param", SLICE) != WHOLE))
    rig.slice_shares, rig.idle_seconds = 4, 3600.0
    rig.start()
    return rig


def tend(rig: Rig) -> None:
    """A round of the janitor, in which it looks at everything."""
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)


def told(rig: Rig, ref: ClaimRef) -> str:
    """What the claim's event says of its holder; the claim is looked at until it says something."""

    def is_told() -> bool:
        tend(rig)
        return "SliceInUse" in dict(events(rig, ref.name))

    wait_for("the event", is_told)
    return dict(events(rig, ref.name))["SliceInUse"]


def assert_given_back(rig: Rig, ref: ClaimRef) -> None:
    def is_over() -> bool:
        tend(rig)
        return not any(e.claim == ref and not e.idle for e in rig.journal())

    wait_for("the janitor", is_over)


def run_on_host(rig: Rig, name: str, uid: str, *, systemd: bool = False) -> Callable[[], object]:
    """A pod of which a process runs, as the host's files show it; returns what ends the process."""
    rig.roots.on_host(f"/var/log/pods/default_{name}_{uid}").mkdir(parents=True)
    place = f"kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/x.scope"
    cgroup = rig.roots.on_host("/sys/fs/cgroup") / (
        place if systemd else f"pids/kubepods/besteffort/pod{uid}/x"
    )
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text("4711\n")
    return lambda: (cgroup / "cgroup.procs").write_text("")


@pytest.mark.parametrize(
    ("node", "device", "is_listed"),
    [
        (SLICE, SLICE, True),
        (SLICE, SLICE, False),
        (SHARE, SHARE, True),
        (WHOLE, WHOLE, False),
        (IDLE, IDLE, True),
    ],
    indirect=["node"],
)
def test_a_pod_of_the_namespace_keeps_the_devices_of_a_claim_that_is_gone(
    node: Rig, device: str, *, is_listed: bool
) -> None:
    ref, late = node.claim(device), node.claim(device)
    node.prepared(ref)
    node.run_pod("holder", *([ref] if is_listed else []))
    node.delete_claim(ref)
    assert "default/holder" in told(node, ref)
    assert [e.claim for e in node.journal()] == [ref]
    if device != SHARE:
        assert "held by claim" in node.refused(late)
    node.restart()
    assert "default/holder" in told(node, ref)
    node.pods.clear()
    assert_given_back(node, ref)


@pytest.mark.parametrize(
    ("node", "device", "systemd"),
    [(SLICE, SLICE, True), (SHARE, SHARE, False), (WHOLE, WHOLE, True), (IDLE, IDLE, False)],
    indirect=["node"],
)
def test_a_pod_that_kubelet_lists_no_more_keeps_them_while_it_runs(
    node: Rig, device: str, *, systemd: bool
) -> None:
    ref = node.claim(device)
    node.prepared(ref)
    node.run_pod("beside", namespace="other")
    end = run_on_host(node, "holder", UID, systemd=systemd)
    node.delete_claim(ref)
    assert "default/holder" in told(node, ref)
    assert node.unprepare(ref) == "", "a pod can end"
    assert [e.claim for e in node.journal()] == [ref]
    end()
    assert_given_back(node, ref)


def test_a_pod_of_the_same_name_is_no_proof_that_the_old_one_has_ended(node: Rig) -> None:
    ref, ended = node.claim(SLICE), node.claim(IDLE)
    node.prepared(ref)
    node.run_pod("holder")
    ends = [run_on_host(node, "holder", uid) for uid in (UID, OTHER)]
    assert node.unprepare(ref) == ""
    assert [e.claim for e in node.journal()] == [ref]
    ends[0]()
    node.prepared(ended)
    assert node.unprepare(ended) == ""
    assert all(e.idle for e in node.journal() if e.claim == ended)
    assert_given_back(node, ref)


def test_kubelet_that_cannot_be_asked_is_waited_for(node: Rig) -> None:
    ref, ended = node.claim(SLICE), node.claim(IDLE)
    for each in (ref, ended):
        node.prepared(each)
    node.pod_resources.stop()
    node.delete_claim(ref)
    why = told(node, ref)
    assert "pod-resources/kubelet.sock" in why
    assert node.unprepare(ended) == ""
    assert {e.claim for e in node.journal() if not e.idle} == {ref}
    assert node.unprepare(ref) == ""
    assert all(e.idle for e in node.journal())


@pytest.mark.parametrize(("node", "device"), [(d, d) for d in (SLICE, WHOLE)], indirect=["node"])
def test_what_a_pod_has_is_found_again_without_claim_and_journal(node: Rig, device: str) -> None:
    ref = node.claim(device)
    node.prepared(ref)
    node.run_pod("holder", ref)
    node.stop()
    lose_journal(node)
    node.delete_claim(ref)
    node.start()
    wait_for("the journal", lambda: [e.claim for e in node.journal()] == [ref])
    assert "held by claim" in node.refused(node.claim(device))
    assert node.unprepare(ref) == ""
    assert_given_back(node, ref)


def test_kubelet_is_asked_only_when_something_would_be_given_away(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = PodResources._list

    def counted(self: PodResources) -> tuple[PodDevices, ...]:
        asked.append(1)
        return ask(self)

    monkeypatch.setattr(PodResources, "_list", counted)
    refs = [node.claim(device) for device in (SLICE, IDLE)]
    for ref in refs:
        node.prepared(ref)
    tend(node)
    assert node.unprepare(refs[0]) == ""
    assert asked == [], "no other pod of the namespace runs"
    node.run_pod("beside")
    run_on_host(node, "beside", UID)
    assert node.unprepare(refs[1]) == ""
    assert asked == [1]
