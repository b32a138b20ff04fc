"""XIDs, lost GPUs and lost slices: who is told, who is left alone, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from api.kubelet.dra_health.v1 import api_pb2 as health_v1
from api.kubelet.dra_health.v1 import api_pb2_grpc as health_v1_grpc
from dra.common.resources import EVENTS, Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.nvml.events import (
    APPLICATION_XIDS,
    HINTS,
    RESET_XIDS,
    Scope,
    XidRules,
    read_rules,
)
from sim.nvml.faults import Fault
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.impatience import give_up_hanging_calls
from tests.kubeletplugin.helpers.rig import Rig

FIRST = "gpu-0-mig-1g5gb-19-4"
SECOND = "gpu-0-mig-1g5gb-19-5"
OTHER_GPU = "gpu-1-mig-1g5gb-19-4"
WITHOUT_VERDICT = Variants(recovery_action="none")


def gi_of(rig: Rig, ref: ClaimRef) -> int:
    (entry,) = [e for e in rig.journal() if e.claim == ref]
    assert entry.gi_id is not None
    return entry.gi_id


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A node with two A100; its plugin is started, and hears their events."""
    rig = make_rig()
    rig.machine.configure(record_calls=True)
    rig.start()
    both = {gpu.uuid for gpu in rig.machine.state().gpus}

    def registered() -> set[str]:
        calls = [c for c in rig.machine.calls() if c.function == "nvmlDeviceRegisterEvents"]
        return {c.gpu for c in calls if c.code == 0}

    wait_for("event sets", lambda: registered() == both)
    rig.machine.configure(record_calls=False)
    return rig


def reason(rig: Rig, gpu: int = 0) -> str:
    return str(rig.mignode()["status"]["gpus"][gpu].get("reason", ""))


def ready(rig: Rig, ref: ClaimRef) -> tuple[str, str]:
    (device,) = rig.claim_status(ref)
    (condition,) = device["conditions"]
    return condition["status"], condition["reason"]


def events(rig: Rig, reason: str) -> list[Obj]:
    found = rig.api.list(EVENTS).items
    return [
        e
        for e in found
        if e["reason"] == reason and e.get("source", {}).get("host", rig.node) == rig.node
    ]


@contextmanager
def health(rig: Rig) -> Iterator[Callable[[], dict[str, tuple[int, str]]]]:
    """The next message of kubelet's health stream: device to health and message."""
    with closing(rig.channel()) as channel:
        stream = health_v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
            health_v1.NodeWatchResourcesRequest()
        )
        yield lambda: {d.device.device_name: (d.health, d.message) for d in next(stream).devices}
        stream.cancel()


def until(read: Callable[[], dict[str, tuple[int, str]]], wanted: dict[str, int]) -> dict[str, str]:
    """Read messages until the devices have this health; their words."""
    for _ in range(50):
        found = read()
        if {n: h for n, (h, _) in found.items()} == wanted:
            return {n: m for n, (_, m) in found.items()}
    pytest.fail(f"health never became {wanted}, last {found}")


def test_an_xid_of_a_slice_concerns_its_claim_and_nobody_else(rig: Rig) -> None:
    sick, well, far = rig.claim(FIRST), rig.claim(SECOND), rig.claim(OTHER_GPU)
    for ref in (sick, well, far):
        rig.prepared(ref)
    mutations = rig.mutations()
    with health(rig) as read:
        rig.machine.raise_event(0, 74, gpu_instance=gi_of(rig, sick), compute_instance=0)
        words = until(
            read,
            {FIRST: health_v1.UNHEALTHY, SECOND: health_v1.HEALTHY, OTHER_GPU: health_v1.HEALTHY},
        )
    assert "XID 74 in GPU instance" in words[FIRST]
    wait_for("the condition", lambda: ready(rig, sick) == ("False", "XidError"))
    assert ready(rig, well) == ready(rig, far) == ("True", "Prepared")
    wait_for("the MigNode", rig.published)
    assert reason(rig) == reason(rig, 1) == ""
    instances = rig.mignode()["status"]["gpus"][0]["instances"]
    assert ["XID 74" in i.get("unhealthy", "") for i in instances] == [True, False]
    wait_for("an event of the claim", lambda: _about(rig, "XidError", sick))
    assert not _about(rig, "XidError", well)
    # What is made in its place next is another slice.
    assert rig.unprepare(sick) == ""
    fresh = rig.claim(FIRST)
    assert rig.prepared(fresh)
    wait_for("a healthy slice", lambda: ready(rig, fresh) == ("True", "Prepared"))
    assert rig.mutations()[: len(mutations)] == mutations


def _about(rig: Rig, reason: str, ref: ClaimRef) -> bool:
    return any(e["involvedObject"]["uid"] == ref.uid for e in events(rig, reason))


@pytest.mark.parametrize("variants", [WITHOUT_VERDICT], ids=["no-recovery-action"])
def test_an_xid_of_the_whole_gpu_takes_it_out_and_leaves_the_other_in(rig: Rig) -> None:
    first, second, far = rig.claim(FIRST), rig.claim(SECOND), rig.claim(OTHER_GPU)
    for ref in (first, second, far):
        rig.prepared(ref)
    rig.machine.raise_event(0, 46)
    ill = ("False", "XidError")
    wait_for("the conditions", lambda: ready(rig, first) == ready(rig, second) == ill)
    wait_for("the MigNode", lambda: reason(rig) == "XidError" and rig.published())
    gpu = rig.mignode()["status"]["gpus"][0]
    assert "XID 46 on gpu-0" in gpu["message"]
    assert "nvidia-smi -r -i" in gpu["message"]
    assert reason(rig, 1) == ""
    assert ready(rig, far) == ("True", "Prepared")
    # Nothing new is made there; what is prepared stays so, as kubelet asks again after a restart.
    late = rig.claim("gpu-0-mig-2g10gb-14-0")
    assert "XID 46" in rig.refused(late)
    assert rig.prepared(first)
    assert rig.prepared(rig.claim("gpu-1-mig-2g10gb-14-0"))
    wait_for("an event of the node", lambda: events(rig, "XidError"))


@pytest.mark.parametrize("variants", [WITHOUT_VERDICT], ids=["no-recovery-action"])
def test_a_reset_ends_what_only_a_reset_can_end(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    rig.machine.raise_event(0, 95, gpu_instance=gi_of(rig, ref))
    wait_for("the MigNode", lambda: reason(rig) == "XidError")
    rig.machine.wipe_gpu(0)
    assert rig.daemon is not None
    rig.poll()
    wait_for("the MigNode", lambda: reason(rig) == "" and rig.published())
    wait_for("the condition", lambda: ready(rig, ref) == ("False", "SliceLost"))
    assert rig.prepared(rig.claim(SECOND))


@pytest.mark.parametrize("variants", [WITHOUT_VERDICT], ids=["no-recovery-action"])
def test_an_xid_of_a_program_says_nothing_of_the_hardware(rig: Rig) -> None:
    ref = rig.claim(FIRST)
    rig.prepared(ref)
    for xid in sorted(APPLICATION_XIDS):
        rig.machine.raise_event(0, xid, gpu_instance=gi_of(rig, ref))
    rig.machine.raise_event(1, 74)
    wait_for("the other GPU", lambda: reason(rig, 1) == "XidError")
    assert reason(rig) == ""
    assert ready(rig, ref) == ("True", "Prepared")


def test_a_wait_for_events_that_hangs_stops_nothing(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    give_up_hanging_calls(monkeypatch, rig.machine)
    rig.start()
    rig.machine.inject(Fault(id="h", function="nvmlEventSetWait_v2", action="hang", times=0))
    wait_for("the hang", lambda: caplog.text.count("are not heard meanwhile") >= 2)
    assert "nvmlEventSetWait" in caplog.text
    assert rig.prepared(rig.claim(FIRST))
    assert rig.prepared(rig.claim(OTHER_GPU))
    assert rig.daemon is not None
    rig.poll()
    wait_for("the MigNode", rig.published)
    assert reason(rig) == reason(rig, 1) == ""


def test_a_driver_without_events_is_said_once(
    make_rig: Callable[..., Rig], caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    fault = Fault(function="nvmlDeviceRegisterEvents", action="return", code=3, times=0)
    rig.machine.inject(fault)
    rig.start()
    wait_for("the words", lambda: "XIDs are not heard on this node" in caplog.text)
    wait_for("both GPUs", lambda: rig.machine.faults.seen(fault.id) >= 2)
    assert rig.prepared(rig.claim(FIRST))
    assert caplog.text.count("XIDs are not heard on this node") == 1
    rig.machine.lose(0)
    assert rig.daemon is not None
    rig.poll()
    wait_for("the MigNode", lambda: reason(rig) == "GpuLost")


# -- rules


@pytest.mark.parametrize("xid", sorted(APPLICATION_XIDS | HINTS))
def test_what_says_nothing_of_the_hardware_is_ignored_unless_it_is_declared_fatal(xid: int) -> None:
    for gi_id in (None, 1):
        assert XidRules().scope(xid, gi_id=gi_id) is Scope.NOTHING
    assert read_rules(fatal=str(xid)).scope(xid, gi_id=1) is Scope.SLICE
    assert read_rules(fatal=str(xid)).scope(xid, gi_id=None, judged=True) is Scope.GPU


def test_ignored_xids_are_added_to_the_defaults_and_all_means_all_but_the_fatal_ones() -> None:
    assert read_rules(ignore="32, 74").scope(74, gi_id=None) is Scope.NOTHING
    assert read_rules(ignore="32").scope(13, gi_id=None) is Scope.NOTHING
    rules = read_rules(ignore="all", fatal="79")
    assert rules.scope(95, gi_id=None) is Scope.NOTHING
    assert rules.scope(79, gi_id=None) is Scope.GPU
    with pytest.raises(ValueError, match="'7x' is not the number of an XID"):
        read_rules(ignore="63,7x")


def test_without_a_verdict_what_needs_a_reset_concerns_the_whole_gpu() -> None:
    assert {143, 158, 167, 168, 171, 172, 173} < RESET_XIDS
    assert {XidRules().scope(x, gi_id=3) for x in RESET_XIDS} == {Scope.GPU}
    assert XidRules().scope(74, gi_id=3) is Scope.SLICE
    assert XidRules().scope(74, gi_id=None) is Scope.GPU
