"""Claims whose Prepare failed or was cut short, as the MigNode tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dra.claims.conditions import PREPARE_FAILING
from dra.common.resources import MIG_NODES, Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.outcomes import SEVERAL, Outcomes
from kubeletplugin.errors import BusyError, HardwareError
from kubeletplugin.journal.entries import Entry
from kubeletplugin.nvml.errors import InUseError, NvmlError
from kubeletplugin.times import LISTED_SECONDS
from sim.nvml.faults import Fault
from tests.dra.kube.clocks import FakeClock
from tests.kubeletplugin.helpers.rig import Rig

REF = ClaimRef("default", "c", "1")
CREATION = "nvmlDeviceCreateGpuInstanceWithPlacement"


class Nobody:
    """Takes whatever it is told."""

    node_name = "node"

    def of_claim(self, uid: str) -> tuple[Entry, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Listed:
    """A list with a clock turned by hand, and a count of its changes."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.changes = 0
        nobody: Any = Nobody()
        common: Any = SimpleNamespace(
            journal=nobody, reports=nobody, clock=self.clock, changed=self._changed
        )
        self.claims = Outcomes(common, nobody, nobody, nobody)

    def _changed(self) -> None:
        self.changes += 1

    def state(self) -> list[tuple[str, bool]]:
        return [(f.claim.uid, f.passing) for f in self.claims.listed()]


@pytest.fixture
def listed() -> Listed:
    return Listed()


def test_a_gpu_is_named_where_it_refused_and_not_where_others_are_in_the_way(
    listed: Listed,
) -> None:
    def said_of(cause: Exception | None) -> str:
        error = HardwareError("it failed")
        error.__cause__ = cause
        listed.claims.failed(REF, error)
        (found,) = listed.claims.listed()
        return str(found.gpu)

    assert said_of(NvmlError("nvmlDeviceCreateGpuInstance", 999, gpu="GPU-1")) == "GPU-1"
    assert said_of(InUseError("nvmlGpuInstanceDestroy", 19, gpu="GPU-1")) == ""
    assert said_of(None) == ""


def test_the_latest_are_listed_where_there_are_too_many(listed: Listed) -> None:
    for number in range(70):
        listed.claims.failed(ClaimRef("default", "c", str(number)), BusyError("held"))
    listed.claims.failed(ClaimRef("default", "c", "10"), BusyError("held"))
    latest = [str(number) for number in range(6, 70) if number != 10]
    assert [uid for uid, _ in listed.state()] == [*latest, "10"]


@pytest.mark.parametrize("order", ["cut_short registered", "registered cut_short"])
def test_calls_that_were_cut_short_resume_once_kubelet_can_call(listed: Listed, order: str) -> None:
    first, second = order.split()
    getattr(listed.claims, first)()
    assert (listed.claims.resumed, listed.changes) == ("", 0)
    getattr(listed.claims, second)()
    assert (listed.claims.resumed, listed.changes) == ("2026-01-01T00:00:00.000000Z", 1)
    listed.claims.registered()
    assert listed.changes == 1, "a kubelet that starts anew asks by itself"


def status(rig: Rig) -> Obj:
    found: Obj = rig.api.get(MIG_NODES, rig.node)["status"]
    return found


@pytest.mark.usefixtures("short_patience")
def test_the_claim_tells_of_several_failures_in_a_row_until_it_is_prepared(rig: Rig) -> None:
    ref = rig.claim("gpu-0-mig-1g5gb-19-0")
    rig.machine.inject(Fault(function=CREATION, action="return", code=999, times=0))
    for _ in range(SEVERAL - 1):
        assert rig.prepare(ref).error
    assert rig.claim_status(ref) == []
    assert rig.prepare(ref).error
    (device,) = rig.claim_status(ref)
    (condition,) = device["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", PREPARE_FAILING)
    assert condition["message"].startswith("3 times in a row: ")
    rig.machine.clear_faults()
    assert not rig.prepare(ref).error
    (device,) = rig.claim_status(ref)
    assert device["conditions"][0]["status"] == "True"
    assert rig.unprepare(ref) == ""
    rig.machine.inject(Fault(function=CREATION, action="return", code=999, times=0))
    assert rig.prepare(ref).error
    assert rig.claim_status(ref) == [], "a success ends a row of failures"


def test_many_failures_of_one_namespace_drive_no_other_out_and_are_not_kept(listed: Listed) -> None:
    listed.claims.failed(REF, BusyError("held"))
    greedy = [ClaimRef("greedy", f"c{n}", f"g{n}") for n in range(200)]
    for ref in greedy:
        listed.claims.not_made_early(ref, BusyError("held"))
    found = [uid for uid, _ in listed.state()]
    assert found == [REF.uid, *(ref.uid for ref in greedy[-63:])]
    for ref in greedy[-63:]:
        listed.claims.forget(ref)
    assert listed.state() == [(REF.uid, False)]


def test_what_kubelet_asks_for_no_more_is_not_listed_for_ever(listed: Listed) -> None:
    listed.claims.failed(REF, BusyError("held"))
    listed.clock.at += LISTED_SECONDS - 1
    assert listed.state() == [("1", False)]
    listed.clock.at += 1
    assert listed.state() == []
