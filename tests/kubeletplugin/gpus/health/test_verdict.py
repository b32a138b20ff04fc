"""The driver's own verdict on a GPU, and other conditions: what is offered, and who is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kubeletplugin import times
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.gpus.health.test_health import (
    FIRST,
    OTHER_GPU,
    SECOND,
    events,
    gi_of,
    ready,
    reason,
    rig,
)
from tests.kubeletplugin.helpers.rig import Rig

__all__ = ["rig"]
LATE = "gpu-0-mig-2g10gb-14-0"
NEVER = 3600.0


@pytest.fixture(autouse=True)
def no_look_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is heard has the plugin look at the hardware."""
    monkeypatch.setattr(times, "POLL_SECONDS", NEVER)


@pytest.mark.parametrize(
    ("action", "word", "ill"), [(1, "GpuRecoveryRequired", True), (4, "GpuRecoveryAdvised", False)]
)
def test_a_verdict_takes_a_gpu_out_until_it_is_over(
    rig: Rig, action: int, word: str, *, ill: bool
) -> None:
    ref, far = rig.claim(FIRST), rig.claim(OTHER_GPU)
    rig.prepared(ref)
    rig.prepared(far)
    rig.machine.ask_recovery(0, action)
    wait_for("the MigNode", lambda: reason(rig) == word and rig.published())
    wait_for("an event of the node", lambda: events(rig, word))
    wait_for(
        "the claim", lambda: ready(rig, ref) == (("False", word) if ill else ("True", "Prepared"))
    )
    assert ready(rig, far) == ("True", "Prepared")
    assert "the driver asks" in rig.refused(rig.claim(LATE)) or not ill
    assert rig.prepared(ref)
    rig.machine.ask_recovery(0, 0)
    wait_for("the MigNode", lambda: reason(rig) == "" and rig.published())
    wait_for("the claim", lambda: ready(rig, ref) == ("True", "Prepared"))
    wait_for("the end of it", lambda: events(rig, "GpuRecovered"))
    assert rig.prepared(rig.claim(LATE))


def test_a_verdict_on_a_gpu_that_is_worked_on_is_read_once_it_is_free(rig: Rig) -> None:
    assert rig.daemon is not None
    unit = rig.daemon.hardware.named("gpu-0")
    other = rig.daemon.hardware.named("gpu-1")
    with unit.lock:
        rig.machine.ask_recovery(0, 4)
        rig.machine.ask_recovery(1, 4)
        wait_for("the other GPU", lambda: other.card.condition.recovery)
        assert reason(rig) == ""
    wait_for("the MigNode", lambda: reason(rig) == "GpuRecoveryAdvised" and rig.published())


HINTED = [Variants(), Variants(recovery_action="none")]


@pytest.mark.parametrize("variants", HINTED, ids=["verdict", "none"])
def test_hints_alone_make_no_gpu_unavailable(rig: Rig) -> None:
    well, sick = rig.claim(FIRST), rig.claim(SECOND)
    rig.prepared(well)
    rig.prepared(sick)
    for xid in (48, 63, 94, 154):
        rig.machine.raise_event(0, xid)
        rig.machine.raise_event(0, xid, gpu_instance=gi_of(rig, well), compute_instance=0)
    rig.machine.raise_event(0, 74, gpu_instance=gi_of(rig, sick), compute_instance=0)
    wait_for("the last of them", lambda: ready(rig, sick) == ("False", "XidError"))
    assert ready(rig, well) == ("True", "Prepared")
    assert reason(rig) == ""
    assert rig.prepared(rig.claim(LATE))


@pytest.mark.parametrize("variants", [Variants(recovery_action="silent")], ids=["silent"])
def test_an_xid_has_the_driver_asked_and_decides_nothing(rig: Rig) -> None:
    rig.machine.raise_event(1, 119)
    rig.machine.ask_recovery(0, 2)
    rig.machine.raise_event(0, 119)
    wait_for("the verdict", lambda: reason(rig) == "GpuRecoveryRequired" and rig.published())
    assert reason(rig, 1) == ""


def test_a_gpu_is_offered_once_its_fabric_is_ready(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.machine.disturb(0, fabric=2)
    rig.machine.start_monitor(0, 4711)
    rig.start()
    said = {"recoveryAction": "None", "fabric": "InProgress", "computeMode": "Default"}
    assert rig.mignode()["status"]["gpus"][0]["health"] == said | {
        "openIn": ["dcgm-exporter (4711)"]
    }
    assert reason(rig) == "FabricNotReady"
    assert "fabric manager" in rig.refused(rig.claim(FIRST))
    assert rig.prepared(rig.claim(OTHER_GPU))
    rig.machine.disturb(0, fabric=3)
    assert rig.daemon is not None
    rig.poll()
    wait_for("the MigNode", lambda: reason(rig) == "" and rig.published())
    assert rig.prepared(rig.claim(FIRST))
    now = rig.mignode()["status"]["gpus"][0]["health"]
    assert now == said | {"fabric": "Completed"}
