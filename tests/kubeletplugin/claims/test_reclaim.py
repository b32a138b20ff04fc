"""Slices that cannot be removed at once: kubelet gets its answer, the placement stays taken."""

from __future__ import annotations

import re
import time

import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from sim.nvml.products import Variants
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"
PID = 4711


pytestmark = pytest.mark.usefixtures("short_patience")


def in_use(rig: Rig) -> ClaimRef:
    """A prepared claim whose slice a process holds."""
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    made = rig.machine.gpu(0).gpu_instances[0]
    rig.machine.start_process(
        0, PID, gpu_instance=made.id, compute_instance=made.compute_instances[0].id
    )
    return ref


def states(rig: Rig) -> list[State]:
    return [e.state for e in rig.journal()]


def test_a_slice_in_use_is_unavailable_with_its_processes_named_and_removed_when_they_end(
    rig: Rig,
) -> None:
    ref, late = in_use(rig), rig.claim(SLICE)
    began = time.monotonic()
    assert rig.unprepare(ref) == ""
    assert time.monotonic() - began > 0.3
    assert rig.specs() == []
    assert states(rig) == [State.LEFTOVER]
    # While the janitor has the GPU, that is said instead.
    wait_for(
        "the holder", lambda: {ref.uid, str(PID)} <= {*re.findall(r"[\w-]+", rig.refused(late))}
    )
    wait_for("MigNode", rig.published)
    [instance] = rig.mignode()["status"]["gpus"][0]["instances"]
    assert instance["state"] == "reclaiming"
    assert str(PID) in instance["message"]
    wait_for("the event", lambda: "SliceInUse" in dict(events(rig, ref.name)))
    assert str(PID) in dict(events(rig, ref.name))["SliceInUse"]
    rig.machine.end_process(PID)
    wait_for("the janitor", rig.clean)
    rig.prepared(late)


def refuse_gpu_instance(rig: Rig) -> None:
    """The driver's known fault: the GPU instance stays IN_USE with no process left."""
    rig.machine.inject(
        Fault(id="gi", function="nvmlGpuInstanceDestroy", action="return", code=19, times=0)
    )


@pytest.mark.every_variant
def test_a_gpu_instance_that_cannot_be_destroyed_is_used_again_where_it_fits(rig: Rig) -> None:
    ref, same, other = rig.claim(SLICE), rig.claim(SLICE), rig.claim("gpu-0-mig-2g10gb-14-4")
    rig.prepared(ref)
    refuse_gpu_instance(rig)
    assert rig.unprepare(ref) == ""
    left = rig.machine.gpu(0).gpu_instances[0].key
    assert ref.uid in rig.refused(other), "its memory slices count as occupied"
    rig.prepared(same)
    assert [g.key for g in rig.machine.gpu(0).gpu_instances] == [left]
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    [entry] = rig.journal()
    assert (entry.claim, entry.state) == (same, State.PREPARED)


@pytest.mark.every_variant
@pytest.mark.usefixtures("frequent_looks", "regained_quickly")
def test_a_lost_gpu_lets_its_pod_end_and_is_unavailable_until_it_is_back(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.machine.lose(0)
    assert rig.unprepare(ref) == ""
    assert states(rig) == [State.TOMBSTONE]
    assert rig.specs() == []
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-0"))
    rig.machine.recover(0)
    wait_for("the janitor", lambda: not any(e.claim == ref for e in rig.journal()))
    rig.prepared(rig.claim(SLICE))


LONG = 10**6


@pytest.mark.parametrize("variants", [Variants(gsp_keeps=LONG)])
def test_a_place_that_the_gpu_keeps_is_nobodys_and_unavailable_until_a_reset(rig: Rig) -> None:
    ref, late = rig.claim(SLICE), rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == "", "its pod can end"
    assert rig.slices() == []
    assert not any(e.claim.uid == ref.uid for e in rig.journal()), "and so can the claim"

    def shown() -> Obj:
        found: Obj = rig.mignode()["status"]["gpus"][0]["instances"][0]
        return found

    wait_for("the MigNode", lambda: "which NVML lists no more" in shown().get("message", ""))
    assert (shown()["state"], "claim" in shown()) == ("reclaiming", False)
    wait_for("the event", lambda: "SliceNotRemoved" in dict(events(rig, rig.node)))
    assert "INSUFFICIENT_RESOURCES" in dict(events(rig, rig.node))["SliceNotRemoved"]
    assert "INSUFFICIENT_RESOURCES" in rig.refused(late)
    rig.prepared(rig.claim("gpu-0-mig-1g5gb-19-5"))
    rig.restart()
    assert ("gpu-0", "1g.5gb", 4, "reclaiming") in rig.published_slices(), "it outlives a restart"
    rig.machine.wipe_gpu(0)
    wait_for("the janitor", lambda: not any(e.suspect for e in rig.journal()))
    assert rig.prepared(late)


@pytest.mark.parametrize("variants", [Variants(gsp_keeps=3)])
def test_a_place_is_given_out_again_once_an_instance_can_be_made_there(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    wait_for("the janitor", rig.clean)
    rig.prepared(rig.claim(SLICE))


def test_a_gpu_that_nvml_does_not_find_is_not_an_instance_that_is_gone(rig: Rig) -> None:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.machine.inject(
        Fault(
            id="absent",
            function="nvmlDeviceGetHandleByPciBusId*",
            action="return",
            code=6,
            gpu=None,
            times=0,
        )
    )
    assert rig.daemon is not None
    assert rig.daemon.hardware.session.reopen(PATIENCE)
    assert rig.unprepare(ref) == ""
    assert states(rig) == [State.TOMBSTONE]
    rig.machine.clear_faults()
    wait_for("the janitor", rig.clean)
