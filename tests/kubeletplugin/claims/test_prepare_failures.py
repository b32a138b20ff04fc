"""Steps of a Prepare or Unprepare that fail: nothing leaks, and the next attempt succeeds."""

from __future__ import annotations

from typing import Any

import pytest

from kubeletplugin.claims import prepare, slices
from kubeletplugin.claims.specs import Specs
from kubeletplugin.journal.journal import Journal
from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that pass are not tried again within a call."""
    monkeypatch.setattr(prepare, "PREPARE_SECONDS", 0.0)


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
