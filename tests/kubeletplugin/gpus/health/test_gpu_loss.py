"""One GPU's trouble stays its own: off the bus, hanging or answering nonsense, and back again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import GpuReason
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.loop import Regaining
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from sim.nvml.products import Variants
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.impatience import give_up_hanging_calls
from tests.kubeletplugin.helpers.rig import Rig

FIRST = "gpu-0-mig-1g5gb-19-4"
SECOND = "gpu-1-mig-1g5gb-19-4"
ANY, OWN = (Variants(lookup_by_uuid=lookup) for lookup in ("any", "own"))
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
    "invalid": answers(2),
    "no-driver": answers(9),
    "unknown": answers(999),
}


def gpus(rig: Rig) -> dict[str, Obj]:
    return {g["name"]: g for g in rig.mignode()["status"].get("gpus", [])}


@pytest.mark.usefixtures("frequent_looks")
@pytest.mark.parametrize(
    ("trouble", "variants"),
    [*((trouble, ANY) for trouble in TROUBLES.values()), (lost, OWN)],
    ids=[*TROUBLES, "lost, and looked up on its own"],
)
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
        assert rig.is_ready
        [condition] = rig.claim_status(on_second)[0]["conditions"]
        assert condition["status"] == "True"
        assert {e.claim: e.state for e in rig.journal()} == dict.fromkeys(
            (on_first, on_second), State.PREPARED
        )
        assert len(rig.specs()) == 2
    assert rig.unprepare(on_second) == ""
    assert [i.start for i in rig.machine.gpu(1).gpu_instances] == []


@pytest.mark.usefixtures("frequent_looks", "regained_quickly")
@pytest.mark.parametrize(("after_loss", "restarted"), [("same", False), ("anew", True)])
def test_a_gpu_that_comes_back_serves_again_without_a_restart(
    make_rig: Callable[..., Rig], after_loss: Literal["same", "anew"], *, restarted: bool
) -> None:
    rig = make_rig()
    rig.machine.configure(variants=Variants(after_loss=after_loss))
    rig.start()
    on_second = rig.claim(SECOND)
    rig.prepared(on_second)
    rig.machine.lose(0)
    if restarted:
        rig.restart()
    else:
        wait_for("the loss", lambda: gpus(rig)["gpu-0"].get("reason") == GpuReason.GPU_LOST)
        assert "GPU_IS_LOST" in rig.refused(rig.claim(FIRST))
    rig.machine.recover(0)
    wait_for("the GPU", lambda: "gpu-0" in gpus(rig) and not gpus(rig)["gpu-0"].get("reason"))
    # Found again, a GPU may have another minor number; its health is told by the monitor.
    ref = rig.claim("gpu-0-mig-1g5gb-19-0")
    wait_for("a slice on it", lambda: not rig.prepare(ref).error)
    assert {s[:3] for s in rig.slices()} == {(0, "1g.5gb", 0), (1, "1g.5gb", 4)}
    assert rig.prepared(on_second)
    assert rig.unprepare(on_second) == ""


@pytest.mark.usefixtures("frequent_looks", "regained_quickly")
def test_xids_are_heard_again_after_nvml_was_opened_anew(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], Regaining.look

    def counted(watch: Regaining) -> None:
        look(watch)
        looks.append(watch)

    monkeypatch.setattr(Regaining, "look", counted)
    rig = make_rig()
    rig.machine.configure(variants=Variants(after_loss="anew"))
    rig.start()
    rig.machine.lose(0)
    assert rig.daemon is not None
    session = rig.daemon.hardware.session
    before = session.generation
    wait_for("a new session", lambda: session.generation > before + 1)
    rig.machine.recover(0)
    wait_for("the GPU", lambda: not gpus(rig)["gpu-0"].get("reason"))
    settled = session.generation
    ref = rig.claim(SECOND)
    rig.prepared(ref)

    def said() -> bool:
        # An event that comes while nobody listens is lost.
        rig.machine.raise_event(1, 74, gpu_instance=rig.machine.gpu(1).gpu_instances[0].id)
        return any(i.get("unhealthy") for i in gpus(rig)["gpu-1"].get("instances", []))

    wait_for("the XID", said)
    heard = len(looks)
    wait_for("further looks", lambda: len(looks) >= heard + 2)
    assert session.generation == settled, "and it is left alone"


class FakeSession:
    """Counts how often it is opened anew."""

    def __init__(self) -> None:
        self.reopened = 0
        self.busy = False

    def reopen(self, seconds: float) -> bool:
        self.reopened += not self.busy
        return not self.busy


class FakeHardware:
    """GPUs of which ``lost`` are; ``problems`` are those that would not say who they are."""

    def __init__(self) -> None:
        self.session = FakeSession()
        self.lost: set[int] = set()
        self.problems: tuple[str, ...] = ()
        self.discovered = 0

    def units(self) -> list[Any]:
        return [
            SimpleNamespace(
                name=f"gpu-{n}", released="", seen=SimpleNamespace(reason=GpuReason.GPU_LOST)
            )
            for n in self.lost
        ]

    def discover(self) -> None:
        self.discovered += 1


def test_nvml_is_opened_anew_ever_more_seldom_while_a_gpu_stays_lost() -> None:
    hardware, clock = FakeHardware(), FakeClock()
    watch = Regaining(cast("Hardware", hardware), clock=clock)

    def opened(seconds: float) -> list[float]:
        """When it was, within so many seconds from now, looked at every ten."""
        start, at = clock.at, []
        while clock.at < start + seconds:
            before = hardware.session.reopened
            watch.look()
            if hardware.session.reopened > before:
                at.append(clock.at - start)
            clock.at += 10.0
        return at

    assert opened(1000.0) == []
    hardware.lost = {0}
    assert opened(3000.0) == [30, 90, 210, 450, 930, 1530, 2130, 2730]
    assert hardware.discovered == 8
    hardware.lost = {0, 1}
    assert opened(100.0) == [30, 90]
    hardware.lost = set()
    assert opened(2000.0) == []
    hardware.problems = ("with index 1",)
    assert opened(40.0) == [30]
    hardware.session.busy = True
    assert opened(600.0) == []
    assert hardware.discovered == 11
