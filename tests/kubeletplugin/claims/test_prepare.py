"""Prepare and Unprepare as kubelet sees them, and what they leave on the node."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from kubeletplugin.claims import slices
from kubeletplugin.claims.specs import Specs
from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import A100, DRIVER, Rig

ONE_G_AT_4 = "gpu-0-mig-1g5gb-19-4"


@pytest.mark.every_variant
def test_a_claim_gets_its_slice_a_cdi_device_and_a_journal_entry(rig: Rig) -> None:
    ref = rig.claim(ONE_G_AT_4)
    answer = rig.prepare(ref)
    assert not answer.error
    [device] = answer.devices
    assert list(device.request_names) == ["r0"]
    assert device.pool_name == rig.node
    assert device.device_name == ONE_G_AT_4
    assert list(device.cdi_device_ids) == [
        f"k8s.{DRIVER}/driver=compute",
        f"k8s.{DRIVER}/claim={ref.uid}-{ONE_G_AT_4}",
    ]
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    [entry] = rig.journal()
    made = rig.machine.gpu(0).gpu_instances[0]
    assert entry.state is State.PREPARED
    assert (entry.gi_id, entry.ci_id) == (made.id, made.compute_instances[0].id)
    assert entry.mig_uuid == made.compute_instances[0].uuid


def test_the_cdi_device_has_the_gpu_and_the_two_capabilities_of_its_slice(rig: Rig) -> None:
    ref = rig.claim("gpu-1-mig-2g10gb-14-2")
    rig.prepared(ref)
    spec = rig.spec(ref)
    [device] = spec["devices"]
    made = rig.machine.gpu(1).gpu_instances[0]
    folder = rig.machine.host_root / f"proc/driver/nvidia/capabilities/gpu1/mig/gi{made.id}"
    minors = [
        int(path.read_text().split()[1])
        for path in (folder / "access", folder / f"ci{made.compute_instances[0].id}" / "access")
    ]
    parent, *capabilities = device["containerEdits"]["deviceNodes"]
    assert parent == {
        "path": "/dev/nvidia1",
        "type": "c",
        "major": 195,
        "minor": 1,
        "permissions": "rw",
    }
    assert capabilities == [
        {
            "path": f"/dev/nvidia-caps/nvidia-cap{minor}",
            "type": "c",
            "major": 237,
            "minor": minor,
            "fileMode": 0o444,
            "permissions": "rw",
        }
        for minor in minors
    ]
    assert "containerEdits" not in spec
    assert rig.common()["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_unprepare_needs_no_api_server_and_no_claim(rig: Rig) -> None:
    ref = rig.claim(ONE_G_AT_4)
    rig.prepared(ref)
    rig.stop()
    rig.http.down = True
    rig.start(ready=False)
    wait_for("recovery", lambda: rig.daemon and rig.daemon.common.readiness.is_ready)
    assert rig.unprepare(ref) == ""
    assert rig.clean()


def test_a_prepared_claim_is_served_from_the_journal_while_the_api_server_is_down(rig: Rig) -> None:
    known, unknown = rig.claim(ONE_G_AT_4), rig.claim("gpu-0-mig-1g5gb-19-0")
    first = rig.prepared(known)
    rig.http.down = True
    assert rig.prepared(known) == first
    assert "cannot read the claim from the API server" in rig.refused(unknown)


def test_calls_for_one_claim_at_the_same_time_make_one_slice(rig: Rig) -> None:
    ref = rig.claim("gpu-0-mig-3g20gb-9-4")
    slow = Fault(
        id="slow",
        function="nvmlDeviceCreateGpuInstanceWithPlacement",
        action="delay",
        seconds=0.3,
        times=0,
    )
    rig.machine.inject(slow)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: rig.prepared(ref), range(6)))
    assert answers == [answers[0]] * 6
    assert rig.mutations().count("nvmlDeviceCreateGpuInstanceWithPlacement") == 1
    assert rig.slices() == [(0, "3g.20gb", 4, True)]


@pytest.mark.parametrize("device", [ONE_G_AT_4, "gpu-0-mig-3g20gb-9-4", "gpu-0-mig-7g40gb-0-0"])
def test_a_slice_that_overlaps_one_in_use_is_refused_with_the_holders_name(
    rig: Rig, device: str
) -> None:
    holder, late = rig.claim(ONE_G_AT_4, name="holder-" + device[6:]), rig.claim(device)
    rig.prepared(holder)
    mutations = rig.mutations()
    error = rig.refused(late)
    assert f"default/{holder.name}" in error
    assert holder.uid in error
    assert rig.mutations() == mutations
    assert rig.unprepare(holder) == ""
    rig.prepared(late)


def test_several_claims_of_one_call_are_answered_each_for_itself(rig: Rig) -> None:
    from api.kubelet.dra.v1 import api_pb2 as v1
    from tests.kubeletplugin.helpers.rig import wire

    good, bad = rig.claim(ONE_G_AT_4), rig.claim("gpu-7")
    with closing(rig.channel()) as channel:
        request = v1.NodePrepareResourcesRequest(claims=[wire(good), wire(bad)])
        answer = rig.stub(channel).NodePrepareResources(request)
    assert set(answer.claims) == {good.uid, bad.uid}
    assert answer.claims[good.uid].devices
    assert "no GPU called gpu-7" in answer.claims[bad.uid].error


def test_a_whole_gpu_is_a_cdi_device_without_capabilities_and_changes_no_hardware(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(GpuSpec(A100), GpuSpec(A100, mig=False))
    rig.start()
    ref, late = rig.claim("gpu-1"), rig.claim("gpu-1")
    rig.prepared(ref)
    [device] = rig.spec(ref)["devices"]
    nodes = [n["path"] for n in device["containerEdits"]["deviceNodes"]]
    assert nodes == ["/dev/nvidia1", "/dev/nvidia-modeset"], "a whole GPU does graphics too"
    assert f"default/{ref.name}" in rig.refused(late)
    assert rig.unprepare(ref) == ""
    assert rig.mutations() == []
    assert rig.clean()
    rig.prepared(late)


def test_a_call_is_answered_before_kubelet_gives_up_and_the_next_joins_the_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = rig.claim(ONE_G_AT_4)
    hang = Fault(
        id="hang", function="nvmlDeviceCreateGpuInstanceWithPlacement", action="hang", gpu=0
    )
    rig.machine.inject(hang)
    with monkeypatch.context() as patch:
        patch.setattr("kubeletplugin.claims.node.RPC_SECONDS", 0.5)
        # On a busy machine the half second may be over before the work is begun.
        wait_for("the work", lambda: "still under way" in rig.refused(ref))
        assert "still under way" in rig.refused(ref)
    rig.machine.clear_faults()
    rig.prepared(ref)
    assert rig.mutations().count("nvmlDeviceCreateGpuInstanceWithPlacement") == 1


# -- steps of a Prepare or Unprepare that fail: nothing leaks, and the next attempt succeeds


def break_rollback(rig: Rig) -> None:
    for function in ("nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"):
        fault = Fault(id=function, function=function, action="return", code=29, times=0)
        rig.machine.inject(fault)


def test_a_rollback_that_fails_is_told_and_finished_later(rig: Rig) -> None:
    ref = rig.claim("gpu-0-mig-1g5gb-19-4")
    break_rollback(rig)
    error = rig.refused(ref)
    assert "undoing it failed too" in error
    assert "nvmlGpuInstanceDestroy" in error
    assert [e.state.value for e in rig.journal()] == ["ci-destroyed"]
    rig.machine.clear_faults()
    assert rig.slices() == [(0, "1g.5gb", 4, False)]
    rig.prepared(ref)
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


def test_capacity_that_the_driver_refuses_names_what_is_on_the_gpu(rig: Rig) -> None:
    # Two +me instances overlap in no memory slice, but there is one set of media engines.
    holder = rig.claim("gpu-0-mig-1g5gb-me-20-0")
    rig.prepared(holder)
    error = rig.refused(rig.claim("gpu-0-mig-1g5gb-me-20-3"))
    assert "INSUFFICIENT_RESOURCES" in error
    assert holder.uid in error


@pytest.mark.parametrize(
    ("part", "step", "error", "ahead"),
    [
        (slices, "create_compute_instance", MemoryError(), False),
        (slices, "create_compute_instance", RuntimeError("a defect"), True),
        (Journal, "put", OSError("no room"), False),
        (Specs, "write", RuntimeError("a defect"), False),
    ],
)
def test_a_failure_that_nobody_expected_leaves_nothing_behind(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    part: object,
    step: str,
    error: Exception,
    *,
    ahead: bool,
) -> None:
    failures, works = [error], getattr(part, step)

    def fails_once(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(*arguments, **named)

    monkeypatch.setattr(part, step, fails_once)
    ref = rig.claim("gpu-0-mig-1g5gb-19-4", expected=ahead)
    if ahead:
        wait_for("the failure", lambda: not failures)
    else:
        assert "internal error" in rig.refused(ref)
    wait_for("nothing left", rig.clean)
    rig.prepared(ref)


# -- a claim whose allocation is changed while the node holds a device for it


def test_a_claim_that_was_given_another_device_is_refused_until_the_old_one_is_released(
    rig: Rig,
) -> None:
    """Meanwhile the plugin is away: else it gives the slice back before there is another."""
    old, new = "gpu-0-mig-1g5gb-19-4", "gpu-1-mig-1g5gb-19-2"
    ref = rig.claim(allocated=False)
    rig.allocate(ref, [rig.result(old)], reserved=True)
    rig.prepared(ref)
    rig.stop()
    rig.set_status(ref, allocation=None, reservedFor=None)
    rig.allocate(ref, [rig.result(new)], reserved=True)
    rig.start()
    mutations = rig.mutations()
    error = rig.refused(ref)
    assert old in error
    assert new in error
    assert rig.mutations() == mutations
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert rig.unprepare(ref) == ""
    assert rig.prepared(ref)
    assert rig.slices() == [(1, "1g.5gb", 2, True)]
