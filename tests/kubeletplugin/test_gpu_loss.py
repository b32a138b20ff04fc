"""One GPU's trouble stays its own: off the bus, hanging or answering nonsense, and back again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dra.kube.resources import Obj
from kubeletplugin.entries import State
from sim.nvml.faults import Fault
from sim.nvml.variants import Variants
from tests.kubeletplugin.impatience import give_up_hanging_calls
from tests.kubeletplugin.rig import Rig
from tests.waiting import wait_for

FIRST = "gpu-0-mig-1g5gb-19-4"
SECOND = "gpu-1-mig-1g5gb-19-4"
BOTH_LOOKUPS = [Variants(lookup_by_uuid="any"), Variants(lookup_by_uuid="own")]
Trouble = Callable[[Rig], None]


def lost(rig: Rig) -> None:
    rig.machine.lose(0)


def hangs(rig: Rig) -> None:
    rig.machine.inject(Fault(id="all", function="nvmlDevice*", action="hang", gpu=0, times=0))


def answers(code: int) -> Trouble:
    def trouble(rig: Rig) -> None:
        for function in ("nvmlDevice*", "nvmlGpuInstance*", "nvmlComputeInstance*"):
            fault = Fault(function=function, action="return", code=code, gpu=0, times=0)
            rig.machine.inject(fault)

    return trouble


TROUBLES = {
    "lost": lost,
    "hangs": hangs,
    "uninitialised": answers(1),
    "invalid": answers(2),
    "unsupported": answers(3),
    "absent": answers(6),
    "no-driver": answers(9),
    "mismatch": answers(18),
    "unknown": answers(999),
}


def gpus(rig: Rig) -> dict[str, Obj]:
    return {g["name"]: g for g in rig.mignode()["status"].get("gpus", [])}


@pytest.mark.usefixtures("frequent_looks")
@pytest.mark.parametrize("variants", BOTH_LOOKUPS, ids=["any", "own"])
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_claims_on_other_gpus_are_prepared_unprepared_and_healthy(
    make_rig: Callable[..., Rig],
    monkeypatch: pytest.MonkeyPatch,
    variants: Variants,
    trouble: Trouble,
) -> None:
    rig = make_rig()
    give_up_hanging_calls(monkeypatch, rig.machine)
    rig.machine.configure(variants=variants)
    rig.start()
    on_first, on_second = rig.claim(FIRST), rig.claim(SECOND)
    for ref in (on_first, on_second):
        rig.prepared(ref)
    trouble(rig)
    wait_for("the MigNode", lambda: gpus(rig)["gpu-0"].get("reason"))
    for restarted in (False, True):
        if restarted:
            rig.stop()
            rig.start()
        other = rig.claim("gpu-1-mig-1g5gb-19-0")
        assert rig.prepared(other)
        assert rig.unprepare(other) == ""
        assert rig.prepared(on_second)
        assert not gpus(rig)["gpu-1"].get("reason")
        assert rig.gate_is_open
        [condition] = rig.claim_status(on_second)[0]["conditions"]
        assert condition["status"] == "True"
        assert {e.claim: e.state for e in rig.journal()} == dict.fromkeys(
            (on_first, on_second), State.PREPARED
        )
        assert len(rig.specs()) == 2
    assert rig.unprepare(on_second) == ""
    assert [i.start for i in rig.machine.gpu(1).gpu_instances] == []
