"""The driver's own verdict on a GPU, and other conditions: what is offered, and who is told."""

from __future__ import annotations

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
