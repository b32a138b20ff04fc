"""What is known of a GPU: a value, changed field by field by those who may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from dra.claims.reasons import NodeReason
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import Gpu
from kubeletplugin.gpus.gpu import Conflict, GpuUnit
from kubeletplugin.nvml.gpus import Card
from tests.dra.kube.clocks import FakeClock

KEY, OTHER = ("uid-1", "gpu-3-mig-1g-1-0"), ("uid-2", "gpu-3-mig-1g-1-1")
GEOMETRY = Geometry(tuple(Profile(i, f"{i}g", i, 1000, 16 * i, (Placement(0, i),)) for i in (1, 2)))
CARD = Card("GPU-a", 3, mig_capable=True, mig_enabled=True, geometry=GEOMETRY)
OFF = Card("GPU-a", 4, mig_capable=True)
PAUSED = Conflict(NodeReason.PAUSED, "paused")
SEEN = Gpu(3, "GPU-a", product_name="", memory_mib=0, mig_enabled=True)

CHANGES: tuple[tuple[str, Callable[[GpuUnit], object], dict[str, Any]], ...] = (
    ("card", lambda u: u.set_card(OFF), {"card": OFF, "geometry": None}),
    ("unavailable", lambda u: u.change(conflict=PAUSED), {"conflict": PAUSED}),
    ("shown", lambda u: u.show(SEEN), {"seen": SEEN}),
    ("back", lambda u: u.come_back([KEY]), {"away": False, "wiped": {KEY}, "geometry": GEOMETRY}),
    ("known lost", lambda u: u.forget_wiped(OTHER), {"wiped": frozenset()}),
    ("not wiped", lambda u: u.forget_wiped(KEY), {}),
)


def unit(*, struck: bool) -> GpuUnit:
    """A GPU of which everything has been said."""
    made = GpuUnit(3, CARD, pcie_root="pci0000:00", clock=FakeClock())
    made.come_back([OTHER])
    if struck:
        made.strike(2, "it was not to be had")
    made.change(conflict=Conflict(NodeReason.MIG_MANAGER, "at work"), unhealthy="XID 79")
    made.show(Gpu(3, "GPU-a", product_name="earlier", memory_mib=0, mig_enabled=True))
    return made


@pytest.mark.parametrize(
    ("change", "fields"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES]
)
@pytest.mark.parametrize("struck", [False, True])
def test_each_method_changes_its_fields_and_no_value_that_was_read(
    change: Callable[[GpuUnit], object], fields: dict[str, Any], *, struck: bool
) -> None:
    gpu = unit(struck=struck)
    before = gpu.known
    copy = asdict(before)
    change(gpu)
    now = gpu.known
    names = type(now).__slots__
    assert {n: getattr(now, n) for n in names} == {n: getattr(before, n) for n in names} | fields
    assert asdict(before) == copy


def test_a_gpu_is_new_until_it_was_seen() -> None:
    made = GpuUnit(3, CARD, pcie_root="pci0000:00")
    assert made.known.away
    assert (made.known.geometry, made.known.seen) == (GEOMETRY, None)
    assert str(made.known) == "gpu-3 (GPU-a)"


def test_a_struck_profile_is_not_offered_and_the_card_still_has_it() -> None:
    known = unit(struck=True).known
    assert known.geometry == Geometry(GEOMETRY.profiles[:1])
    assert known.card.geometry == GEOMETRY
