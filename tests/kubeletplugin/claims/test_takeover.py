"""Instances of others are taken over once nobody has them, and a node is handed back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from dra.common.resources import MIG_NODES, NODES
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import KubeError, UnavailableError
from kubeletplugin import times
from kubeletplugin.claims import takeover
from kubeletplugin.journal.entries import State
from sim.kubelet.claims import ClaimInfo
from sim.kubelet.plugins import PreparedDevice
from sim.nvml.faults import Fault
from sim.nvml.machine import Slice
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import events, reasons
from tests.kubeletplugin.helpers.rig import Rig

LABEL = "nvidia.com/gpu.deploy.device-plugin"
MIG = "nvidia.com/mig-1g.5gb"
UID = "9f2c8a34-55d4-4a0e-8b7a-0d7a1c2b3e4f"
FREE = "gpu-0-mig-1g5gb-19-6"
"""A device that no instance of others is in the way of."""


@pytest.fixture
def node(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A node on which the other manager's plugin ran, and stays off by its label."""
    monkeypatch.setattr(times, "TAKEOVER_PAUSE_SECONDS", 0.0)
    rig = make_rig()
    label(rig, "false")
    rig.run_pod("beside")
    return rig


def label(rig: Rig, value: str) -> None:
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": {LABEL: value}}})


def start(rig: Rig) -> None:
    rig.start()
    assert rig.daemon is not None
    rig.daemon.hardware.session.names_processes = True


def ask(rig: Rig, wish: str, **more: Any) -> None:
    """Write an administrator's wish, and wait until the plugin has heard it."""
    labels = [{"key": LABEL, "value": "true"}]
    since = f"{wish}-{len(json.dumps(more))}"
    spec = {"takeover": {"wish": wish, "since": since, "labels": labels, **more}}
    wait_for("the MigNode", lambda: rig.api.get(MIG_NODES, rig.node))
    rig.api.patch(MIG_NODES, rig.node, {"spec": spec})

    def heard() -> bool:
        assert rig.daemon is not None
        found = rig.daemon.mignode.wishes.takeover
        return found is not None and found.since == since

    wait_for("the wish", heard)


def tend(rig: Rig) -> tuple[str, str]:
    """A round of the janitor; state and message of the progress after it."""
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)
    found = rig.daemon.takeover.progress
    return (found.state, found.message) if found is not None else ("", "")


def tended(rig: Rig, condition: Callable[[], object]) -> Callable[[], bool]:
    """The condition, after another round of the janitor."""

    def is_met() -> bool:
        tend(rig)
        return bool(condition())

    return is_met


def instances(rig: Rig) -> set[int]:
    return {gi.key for gpu in rig.machine.state().gpus for gi in gpu.gpu_instances}


def is_shown(rig: Rig, instance: tuple[str, str, int, str]) -> bool:
    """Whether the MigNode has an instance, after a look at the GPUs."""
    rig.poll()
    return instance in rig.published_slices()


def settled(rig: Rig, state: str = "success") -> str:
    """The message, once the wish is in that state."""
    wait_for(state, lambda: tend(rig)[0] == state, context=lambda: str(tend(rig)))
    return tend(rig)[1]


def give(rig: Rig, made: Slice, name: str, *, resource: str = MIG, form: str = "{}") -> None:
    rig.run_pod(name)
    rig.plugin_devices[name] = {resource: [form.format(made.uuid)]}


def claimed(rig: Rig, name: str, device: str, cdi: str) -> None:
    """A pod with a device of another DRA driver."""
    rig.run_pod(name)
    prepared = PreparedDevice((), rig.node, device, (cdi,))
    info = ClaimInfo(ClaimRef("default", "c", UID), devices={"gpu.nvidia.com": (prepared,)})
    rig.pods[name] = (rig.pods[name][0], (info,))


def running(rig: Rig, name: str) -> Callable[[], object]:
    """A pod of which a process runs, as the host shows it; returns what ends the process."""
    rig.roots.on_host(f"/var/log/pods/default_{name}_{UID}").mkdir(parents=True)
    cgroup = rig.roots.on_host("/sys/fs/cgroup") / f"kubepods/pod{UID}/x"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.procs").write_text("4711\n")
    return lambda: (cgroup / "cgroup.procs").write_text("")


# -- who has them


def test_the_mignode_names_pod_and_plugin_of_a_foreign_instance(node: Rig) -> None:
    made = [node.machine.create_slice(0, "1g.5gb", start=n) for n in range(3)]
    give(node, made[0], "plain")
    give(node, made[1], "shared", resource=f"{MIG}.shared", form="{}::3")
    cdi = f"k8s.gpu.nvidia.com/claim={UID}-gpu-0-mig-1g5gb-19-2"
    claimed(node, "dra", "gpu-0-mig-1g5gb-19-2", cdi)
    start(node)

    def told() -> list[tuple[str, str]]:
        found = node.mignode()["status"]["gpus"][0].get("instances", [])
        return [(i.get("message", ""), i.get("uuid", "")) for i in found]

    texts = [
        f"pod default/plain ({MIG})",
        f"pod default/shared ({MIG}.shared)",
        "pod default/dra (gpu.nvidia.com)",
    ]
    wanted = [(text, each.uuid) for text, each in zip(texts, made, strict=True)]
    wait_for("the pods", tended(node, lambda: told() == wanted), context=lambda: str(told()))
    node.pods.pop("plain")
    wait_for("the end", tended(node, lambda: told()[0] == ("", made[0].uuid)))
    assert "default/shared" not in node.refused(node.claim("gpu-0-mig-1g5gb-19-1"))


# -- taken


def test_instances_go_one_by_one_as_their_pods_end(
    node: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [node.machine.create_slice(0, "1g.5gb", start=n) for n in range(3)]
    made.append(node.machine.create_slice(1, "3g.20gb", start=0))
    for number in (0, 3):
        give(node, made[number], f"train-{number}")
    node.machine.start_process(
        0, 4711, gpu_instance=made[1].gpu_instance, compute_instance=0, kind="graphics"
    )
    start(node)
    before = instances(node)
    monkeypatch.setattr(times, "TAKEOVER_PAUSE_SECONDS", 3600.0)
    ask(node, "take")
    for _ in range(3):
        assert "4 left" in tend(node)[1]
    assert instances(node) == before, "nothing goes at first sight"
    monkeypatch.setattr(times, "TAKEOVER_PAUSE_SECONDS", 0.0)
    told = settled(node, "pending")
    wait_for("the first", tended(node, lambda: len(instances(node)) == len(before) - 1))
    told = tend(node)[1]
    assert told.startswith("3 left: gpu-0 1g.5gb at 0:1: pod default/train-0")
    assert "process 4711 is in it, and kubelet gives it to no pod" in told
    node.prepared(node.claim("gpu-0-mig-1g5gb-19-2"))
    node.machine.end_process(4711)
    node.pods.pop("train-0")
    wait_for("the next", lambda: "1 left" in tend(node)[1])
    node.pods.pop("train-3")
    assert settled(node) == "no instance of others is left"
    assert [s[1:3] for s in node.slices()] == [("1g.5gb", 2)], "the claim's own stays"
    assert [e.state for e in node.journal()] == [State.PREPARED]
    wait_for("the event", lambda: "NodeTakenOver" in dict(events(node, node.node)))
    removed = [m for r, m in events(node, node.node) if r == "ForeignInstanceRemoved"]
    assert any(made[3].uuid in text for text in removed)

    def unread(_: str, path: str) -> KubeError | None:
        """No answer about the MigNode, until its watch begins."""
        ends = path.endswith(f"mignodes/{node.node}")
        return UnavailableError("no answer") if ends else None

    later = node.machine.create_slice(1, "1g.5gb", start=0)
    for _ in range(3):
        tend(node)
    assert later.uuid in str(node.machine.snapshot()), "a takeover that is over takes nothing"
    wait_for("the MigNode", lambda: "success" in str(node.mignode()["status"]["takeover"]))
    for is_read in (True, False):
        node.stop()
        node.http.refuse = (lambda *_: None) if is_read else unread
        start(node)
        wait_for("the wish", lambda: node.daemon and node.daemon.mignode.wishes.takeover)
        another = node.machine.create_slice(1, "1g.5gb", start=1 + is_read)
        wait_for("a write", partial(is_shown, node, ("gpu-1", "1g.5gb", another.start, "foreign")))
        tend(node)
        assert later.uuid in str(node.machine.snapshot()), "nor does it after a restart"
        assert node.mignode()["status"]["takeover"]["state"] == "success"


def test_a_gpu_that_is_released_is_not_taken_over_yet(node: Rig) -> None:
    node.machine.create_slice(0, "1g.5gb", start=0)
    start(node)
    wait_for("the MigNode", node.published_slices)
    node.api.patch(MIG_NODES, node.node, {"spec": {"drain": {"gpus": ["gpu-0"]}}})
    wait_for("the release", lambda: "GpuReleased" in reasons(node))
    ask(node, "take")
    assert "gpu-0: released (drained)" in settled(node, "pending")
    node.api.patch(MIG_NODES, node.node, {"spec": {"drain": None}})
    settled(node)
    assert not instances(node)


@contextmanager
def obstacle(rig: Rig, made: Slice, kind: str) -> Iterator[None]:
    """What keeps an instance from being taken, while it is there."""
    assert rig.daemon is not None
    session, uuid = rig.daemon.hardware.session, made.uuid
    dra = "gpu-1-mig-1g5gb-19-3"
    in_use = Fault(function="nvmlComputeInstanceDestroy", action="return", code=19, times=0)
    begin: dict[str, Callable[[], Any]] = {
        "plugin": lambda: give(rig, made, "x"),
        "dra": lambda: claimed(rig, "x", dra, f"k8s.gpu.nvidia.com/claim={UID}-{dra}"),
        "whole": lambda: give(rig, made, "x", resource="nvidia.com/gpu", form=f"{made.gpu}-4"),
        "unclear": lambda: give(rig, made, "x", resource="mig.das.com/mig-1g.5gb", form="7"),
        "process": lambda: rig.machine.start_process(
            1, 77, gpu_instance=made.gpu_instance, compute_instance=0
        ),
        "process anywhere": lambda: rig.machine.start_process(1, 77),
        "label": lambda: label(rig, "true"),
        "allocatable": lambda: patch_status(rig, "1"),
        "offered": lambda: rig.plugin_devices.update({"": {"example.com/gpu": [uuid]}}),
        "no pods": lambda: rig.pods.pop("beside"),
        "blind": lambda: setattr(session, "names_processes", False),
        "api": lambda: setattr(rig.http, "down", True),
        "kubelet": rig.pod_resources.stop,
        "in use": lambda: rig.machine.inject(in_use),
    }
    begin.get(kind, lambda: None)()
    end = running(rig, "x") if kind in {"unlisted", "init"} else lambda: None
    if kind == "init":
        rig.run_pod("x")
        entry = {"PodUID": UID, "ResourceName": MIG, "DeviceIDs": {"-1": [made.uuid]}}
        file = rig.roots.on_host(f"{rig.roots.kubelet}/device-plugins/kubelet_internal_checkpoint")
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    yield
    end()
    rig.plugin_devices.clear()
    rig.pods.pop("x", None)
    rig.machine.end_process(77)
    rig.machine.clear_faults()
    label(rig, "false")
    patch_status(rig, "0")
    rig.run_pod("beside")
    session.names_processes = True
    rig.http.down = False
    if kind == "kubelet":
        rig.answer_again()


def patch_status(rig: Rig, allocatable: str) -> None:
    status = {"allocatable": {MIG: allocatable}, "capacity": {MIG: "1"}}
    rig.api.patch(NODES, rig.node, {"status": status}, subresource="status")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("plugin", f"pod default/x ({MIG})"),
        ("dra", "pod default/x (gpu.nvidia.com)"),
        ("whole", "pod default/x (nvidia.com/gpu)"),
        ("unclear", "pod default/x (mig.das.com/mig-1g.5gb) may have any"),
        ("process", "process 77"),
        ("process anywhere", "process 77"),
        ("label", f"{LABEL}=true"),
        ("allocatable", "a device plugin gives out this node's GPUs too"),
        ("offered", "a device plugin still gives out example.com/gpu"),
        ("unlisted", "pod default/x runs here, and kubelet does not list it"),
        ("init", f"pod default/x ({MIG})"),
        ("no pods", "kubelet lists no pod"),
        ("blind", "hostPID"),
        ("kubelet", "pod-resources/kubelet.sock"),
        ("api", "the API server does not answer"),
        ("in use", "IN_USE"),
    ],
)
def test_an_instance_stays_while_somebody_may_have_it(
    node: Rig, kind: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node.machine.create_slice(1, "1g.5gb", start=3)
    start(node)
    wait_for("the MigNode", node.published_slices)
    before = instances(node)
    monkeypatch.setattr(times, "TAKEOVER_PAUSE_SECONDS", 3600.0)
    ask(node, "take")
    wait_for("the first look", lambda: "nobody has it" in tend(node)[1])
    with obstacle(node, made, kind):
        monkeypatch.setattr(times, "TAKEOVER_PAUSE_SECONDS", 0.0)
        wait_for(told, lambda: told in tend(node)[1], context=lambda: str(tend(node)))
        for _ in range(3):
            assert tend(node)[0] == "pending"
        assert instances(node) == before
        assert made.uuid in str(node.machine.snapshot())
        assert not node.journal()
    settled(node)
    assert not instances(node)


def test_nothing_is_given_out_while_the_other_manager_may_still_do_so(node: Rig) -> None:
    node.machine.create_slice(0, "1g.5gb", start=0)
    label(node, "true")
    start(node)
    ask(node, "take")
    tend(node)
    wait_for("the MigNode", lambda: reasons(node) == ["TakeoverPending"] * 2)
    assert "is taken over" in node.refused(node.claim(FREE))
    node.restart()
    assert "is taken over" in node.refused(node.claim(FREE)), "from the first moment on"
    start_seeing(node)
    label(node, "false")
    settled(node)
    node.prepared(node.claim(FREE))


def start_seeing(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.hardware.session.names_processes = True


@pytest.mark.parametrize("step", ["destroy_compute_instances", "destroy_gpu_instance"])
def test_what_a_killed_process_left_is_judged_by_what_is_there(
    node: Rig, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = node.machine.create_slice(0, "1g.5gb", start=0)
    start(node)
    ask(node, "take")

    def dies(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(takeover, step, dies)
        wait_for("the kill", lambda: _dies(node))
        node.stop()
    is_whole = step == "destroy_compute_instances"
    assert (made.uuid in str(node.machine.snapshot())) is is_whole
    if is_whole:
        give(node, made, "train")
    start(node)
    left = "gpu-0 1g.5gb at 0:1: pod default/train" if is_whole else "no instance of others"
    wait_for("the next look", lambda: left in tend(node)[1])
    assert not node.journal()
    assert bool(instances(node)) is is_whole


def _dies(rig: Rig) -> bool:
    try:
        tend(rig)
    except SystemExit:
        return True
    return True


# -- handed back


def test_a_node_is_handed_back_once_its_claims_have_ended(node: Rig) -> None:
    start(node)
    ref, late = node.claim(FREE), node.claim("gpu-1-mig-1g5gb-19-0")
    node.prepared(ref)
    shape = {"placement": {"start": 4, "size": 4}, "profileId": 9}
    uuids = [gpu.uuid for gpu in node.machine.state().gpus]
    kept = [{"gpu": uuid, **shape} for uuid in uuids]
    ask(node, "return", restore=True, instances=kept)
    assert str(ref) in settled(node, "pending")
    assert "handed back" in node.refused(late)
    wait_for("the MigNode", lambda: reasons(node) == ["NodeHandedBack"] * 2)
    theirs = node.machine.create_slice(1, "1g.5gb", start=0)
    give(node, theirs, "train")
    wait_for("the pod", tended(node, lambda: f"pod default/train ({MIG})" in str(node.mignode())))
    assert node.unprepare(ref) == ""
    assert settled(node) == "nothing of this driver is left on the node"
    wanted = [(0, "3g.20gb", 4, True), (1, "1g.5gb", 0, True), (1, "3g.20gb", 4, True)]
    assert node.slices() == wanted
    assert not node.journal()
    assert dict(events(node, node.node))["NodeHandedBack"]
    node.restart()
    assert "handed back" in node.refused(late)
    label(node, "true")
    for gi in node.machine.gpu(1).gpu_instances:
        node.machine.destroy_slice(1, gi.id)
    tend(node)
    assert node.slices() == wanted[:1], "they are the other manager's by then"


@pytest.mark.usefixtures("frequent_looks")
def test_slices_of_a_layout_go_when_the_node_is_handed_back(node: Rig) -> None:
    entry = {"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}
    node.node_classes = node.folder / "classes"
    node.node_classes.mkdir()
    parted = {"version": "v1", "mig-configs": {"pairs": [entry]}}
    (node.node_classes / "parted.yaml").write_text(json.dumps(parted))
    node.api.patch(NODES, node.node, {"metadata": {"labels": {"nvidia.com/mig.config": "pairs"}}})
    start(node)
    wait_for("the layout", lambda: len(node.slices()) == 4)
    ask(node, "return")
    settled(node)
    assert node.slices() == []


def test_what_cannot_be_made_again_is_told(node: Rig) -> None:
    node.machine.create_slice(0, "1g.5gb", start=5)
    start(node)
    (uuid, _) = [gpu.uuid for gpu in node.machine.state().gpus]
    kept = [{"gpu": uuid, "placement": {"start": 4, "size": 4}, "profileId": 9}]
    ask(node, "return", restore=True, instances=kept)
    assert "gpu-0 3g.20gb at 4:4" in settled(node, "pending")
    assert not node.journal()
    node.machine.destroy_slice(0, node.machine.gpu(0).gpu_instances[0].id)
    settled(node)
    assert [s[:3] for s in node.slices()] == [(0, "3g.20gb", 4)]


def test_a_gpu_that_a_pod_of_others_has_whole_is_offered_once_it_ends(
    node: Rig, make_rig: Callable[..., Rig]
) -> None:
    start(node)
    assert node.daemon is not None
    uuid = node.machine.gpu(0).uuid
    node.run_pod("whole")
    node.plugin_devices["whole"] = {"nvidia.com/gpu": [uuid]}
    ask(node, "take")
    assert "gpu-0 whole: pod default/whole" in settled(node, "pending")
    wait_for("the MigNode", lambda: reasons(node) == ["TakeoverPending", ""])
    assert "default/whole" not in str(node.mignode()["status"]["gpus"])
    node.pods.pop("whole")
    settled(node)
    wait_for("the MigNode", lambda: reasons(node) == ["", ""])
