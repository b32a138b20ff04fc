"""Slices that vanish: noticed, told, their place kept, and made again only when the pod starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin import times
from kubeletplugin.claims import janitor
from kubeletplugin.journal.entries import State
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


def look(rig: Rig) -> None:
    assert rig.daemon is not None
    # The janitor's own thread may be at work: then his round is waited for, not one from before.
    assert rig.daemon.node.tasks.wait_idle(10)
    rig.daemon.janitor.tend(everything=True)
    assert rig.daemon.node.tasks.wait_idle(10)


def lost(rig: Rig) -> int:
    look(rig)
    return [e.state for e in rig.journal()].count(State.LOST)


def vanish(rig: Rig) -> ClaimRef:
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    rig.machine.destroy_slice(0, rig.machine.gpu(0).gpu_instances[0].id)
    look(rig)
    return ref


def test_a_slice_destroyed_by_somebody_is_told_and_not_made_again_under_the_pod(rig: Rig) -> None:
    ref = vanish(rig)
    assert [e.state for e in rig.journal()] == [State.LOST]
    assert rig.slices() == []
    assert rig.specs() == [], "its numbers may be another claim's by now"
    wait_for("MigNode", lambda: rig.published_slices() == [("gpu-0", "1g.5gb", 4, "lost")])
    [condition] = rig.claim_status(ref)[0]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "False")
    assert "Lost" in condition["reason"]
    wait_for("the event", lambda: "SliceLost" in dict(events(rig, ref.name)))
    assert ref.uid in rig.refused(rig.claim(SLICE)), "its place is kept"


def test_a_lost_slice_is_made_again_at_its_place_when_the_pod_starts_again(rig: Rig) -> None:
    ref = vanish(rig)
    before = rig.journal()[0].mig_uuid
    rig.prepared(ref)
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    [entry] = rig.journal()
    assert entry.state is State.PREPARED
    assert entry.mig_uuid != before
    assert len(rig.specs()) == 1
    [condition] = rig.claim_status(ref)[0]["conditions"]
    assert condition["status"] == "True"


def listening(rig: Rig) -> set[str]:
    calls = [c for c in rig.machine.calls() if c.function == "nvmlDeviceRegisterEvents"]
    return {c.gpu for c in calls if c.code == 0}


def test_what_somebody_does_to_instances_is_seen_when_the_driver_tells_of_it(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing looks by itself meanwhile."""
    monkeypatch.setattr(times, "POLL_SECONDS", 1e6)
    monkeypatch.setattr(janitor, "CHECK_SECONDS", 1e6)
    monkeypatch.setattr(janitor, "CLAIMS_SECONDS", 1e6)
    rig = make_rig()
    rig.machine.configure(record_calls=True)
    rig.start()
    ref = rig.claim(SLICE)
    rig.prepared(ref)
    wait_for("a watch of each GPU", lambda: len(listening(rig)) == 2)
    rig.machine.create_slice(1, "2g.10gb", start=0)
    rig.machine.destroy_slice(0, rig.machine.gpu(0).gpu_instances[0].id)
    wait_for("the loss", lambda: [e.state for e in rig.journal()] == [State.LOST])
    wait_for(
        "MigNode",
        lambda: (
            rig.published_slices()
            == [("gpu-0", "1g.5gb", 4, "lost"), ("gpu-1", "2g.10gb", 0, "foreign")]
        ),
    )
