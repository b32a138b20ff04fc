"""Profiles that could not be had as advertised: what is offered of them meanwhile, and after."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from dra.gpu.geometry import Geometry, Placement, Profile
from kubeletplugin.claims import prepare
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.nvml.gpus import Card
from sim.nvml.machine import GpuSpec
from sim.nvml.products import Variants, load_product
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.reported import verdict
from tests.kubeletplugin.helpers.rig import Rig
from tests.kubeletplugin.nvml.test_compute import altered

GEOMETRY = Geometry(tuple(Profile(i, f"{i}g", i, 1000, 16 * i, (Placement(0, i),)) for i in (1, 2)))
H100 = "H100-80GB-HBM3"
DOUBLE = "gpu-0-mig-1g20gb-15-0"
OTHER = "gpu-0-mig-1g10gb-19-2"
MAKES = "nvmlDeviceCreateGpuInstanceWithPlacement"


CARD = Card("GPU-a", 0, mig_capable=True, mig_enabled=True, geometry=GEOMETRY)


def offered(unit: GpuUnit) -> list[tuple[int, int]]:
    geometry = unit.geometry
    assert geometry is not None
    return [(p.id, p.multiprocessors) for p in geometry.profiles]


def test_what_was_struck_off_comes_back_ever_later_and_after_a_reset() -> None:
    clock = FakeClock()
    unit = GpuUnit(0, CARD, pcie_root="", clock=clock)
    assert offered(unit) == [(1, 16), (2, 32)]
    for seconds, told in {5: "5 s", 10: "10 s", 20: "20 s", 40: "40 s", 80: "80 s"}.items():
        unit.strike(1, "why")
        assert offered(unit) == [(2, 32)]
        assert unit.struck(1) == f"why; it is tried again in {told}"
        assert unit.struck(2) == ""
        clock.wait(Event(), seconds)
        assert offered(unit) == [(1, 16), (2, 32)]
        assert unit.struck(1) == ""
    unit.strike(1, "why")
    unit.come_back([])
    assert offered(unit) == [(1, 16), (2, 32)]
    unit.strike(1, "why")
    assert unit.struck(1).endswith("in 5 s")


def made(rig: Rig) -> int:
    return rig.mutations().count(MAKES)


def in_mignode(rig: Rig) -> dict[str, int]:
    """Profiles of the first GPU with their multiprocessors."""
    status = rig.mignode()["status"]
    by_name = {g["name"]: g["profiles"] for g in status["geometries"]}
    name = status["gpus"][0]["geometry"]
    return {p["name"]: p["multiprocessors"] for p in by_name[name]}


def test_a_slice_that_cannot_be_had_is_made_once_said_and_leaves_the_others_alone(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "PREPARE_SECONDS", 0.0)
    rig = make_rig(GpuSpec(H100))
    rig.machine.configure(variants=Variants(full_compute="refused"))
    rig.start()
    ref = rig.claim(DOUBLE)
    for _ in range(2):
        error = rig.refused(ref)
        assert "advertises 26 multiprocessors" in error
        assert rig.clean()
    assert made(rig) == 1
    assert verdict(rig, ref) == "", "one refusal may be a mistake"
    wait_for("the MigNode", lambda: "1g.20gb" not in in_mignode(rig))
    assert rig.prepared(rig.claim(OTHER)), "the remedy that is named"
    rig.machine.configure(variants=Variants())
    assert rig.daemon is not None
    rig.daemon.hardware.units()[0].come_back([])
    assert rig.prepared(ref)


def test_a_profile_that_has_less_than_it_advertises_is_published_with_what_it_has(
    make_rig: Callable[..., Rig],
) -> None:
    product = altered(load_product(H100), "1g.20gb", keep=lambda c: c.enum != 7)
    rig = make_rig(GpuSpec(product))
    rig.start()
    assert in_mignode(rig)["1g.20gb"] == 26
    ref = rig.claim(DOUBLE)
    assert "offered with 16 from now on" in rig.refused(ref)
    assert rig.clean()
    wait_for("the MigNode", lambda: in_mignode(rig)["1g.20gb"] == 16)
    assert rig.prepared(ref), "that much it is now promised"
