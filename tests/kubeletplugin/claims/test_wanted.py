"""Devices of a claim as the node has them, and every reason to refuse one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra.claims.allocation import AllocatedDevice
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, GpuReason
from kubeletplugin.claims.wanted import intent
from kubeletplugin.errors import DeviceError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.gpus import Card

DRIVER, POOL = "mig.dra.dev", "node-1"
GOOD = "gpu-0-mig-1g5gb-19-4"
REF = ClaimRef("default", "claim", "uid")

SMALL = Profile(19, "1g.5gb", 1, 4864, 14, (Placement(0, 1), Placement(4, 1)))
LARGE = Profile(9, "3g.20gb", 3, 19968, 42, (Placement(0, 4), Placement(4, 4)))
WITH_ENGINES = Profile(20, "1g.5gb+me", 1, 4864, 14, (Placement(0, 1),))
CARD = Card(
    "GPU-a",
    0,
    mig_capable=True,
    mig_enabled=True,
    mig_pending=True,
    geometry=Geometry((SMALL, LARGE, WITH_ENGINES)),
)
WHOLE = Card("GPU-b", 1)


class Node(Hardware):
    """GPUs that were found."""

    def __init__(self, *cards: Card) -> None:
        self.boot_id = "boot"
        self.found = [GpuUnit(n, card, pcie_root="") for n, card in enumerate(cards)]

    def units(self) -> tuple[GpuUnit, ...]:
        return tuple(self.found)


def given(device: str, *, admin_access: bool = False) -> AllocatedDevice:
    return AllocatedDevice("r0/large", DRIVER, POOL, device, admin_access=admin_access)


def wanted(device: AllocatedDevice, node: Node) -> tuple[GpuUnit, Entry]:
    return intent(device, REF, node, total=2)


def test_a_slice_is_its_profile_and_placement_on_its_gpu() -> None:
    unit, entry = wanted(given("gpu-0-mig-3g20gb-9-4"), Node(CARD, WHOLE))
    assert unit.uuid == "GPU-a"
    assert entry == Entry(
        claim=REF,
        device="gpu-0-mig-3g20gb-9-4",
        state=State.INTENT,
        gpu="GPU-a",
        boot_id="boot",
        pool=POOL,
        requests=("r0",),
        total=2,
        profile_id=9,
        profile="3g.20gb",
        placement=Placement(4, 4),
    )


@pytest.mark.parametrize(
    "card",
    [CARD, WHOLE, replace(WHOLE, reason=GpuReason.NVML_ERROR, problem="it is sick")],
    ids=["MIG", "whole", "sick"],
)
def test_a_look_is_had_at_any_gpu(card: Card) -> None:
    _, entry = wanted(given("gpu-0", admin_access=True), Node(card))
    assert (entry.view, entry.placement, entry.gpu) == (True, None, card.uuid)


NOT_HERE = {
    "no name": ("gpu0-1g", CARD, ["'gpu0-1g'", "must be allocated by this driver"]),
    "a name with zeros": ("gpu-0-mig-1g5gb-019-4", CARD, ["neither gpu-<minor> nor"]),
    "no such GPU": ("gpu-5-mig-1g5gb-19-4", CARD, ["no GPU called gpu-5", "it has: gpu-0"]),
    "no such profile": (
        "gpu-0-mig-9g5gb-99-4",
        CARD,
        ["no profile 9g5gb-99; it has: 1g.5gb (1g5gb-19), 3g.20gb (3g20gb-9), "],
    ),
    "another profile's name": ("gpu-0-mig-1g6gb-19-4", CARD, ["no profile 1g6gb-19;"]),
    "another profile's number": ("gpu-0-mig-1g5gb-20-0", CARD, ["no profile 1g5gb-20;"]),
    "no profiles": (
        "gpu-0-mig-1g5gb-19-4",
        replace(CARD, geometry=None),
        ["no profile 1g5gb-19; it has: none"],
    ),
    "no such place": (
        "gpu-0-mig-1g5gb-19-3",
        CARD,
        ["1g.5gb on gpu-0 cannot start at memory slice 3; it can at: 0, 4"],
    ),
    "whole in MIG mode": ("gpu-0", CARD, ["gpu-0 (GPU-a) is in MIG mode", "largest profile"]),
    "whole with a trouble": (
        "gpu-0",
        replace(WHOLE, problem="it is sick", reason=GpuReason.NVML_ERROR),
        ["gpu-0 (GPU-b) cannot be used: it is sick"],
    ),
}


@pytest.mark.parametrize("case", NOT_HERE)
def test_what_the_node_does_not_have_is_refused_with_what_it_has(case: str) -> None:
    device, card, parts = NOT_HERE[case]
    with pytest.raises(DeviceError) as error:
        wanted(given(device), Node(card))
    for part in parts:
        assert part in str(error.value)


def test_a_whole_gpu_that_is_not_healthy_is_refused() -> None:
    node = Node(WHOLE)
    node.found[0].unhealthy = "XID 79"
    with pytest.raises(DeviceError, match=r"gpu-0 \(GPU-b\) cannot be used: XID 79"):
        wanted(given("gpu-0"), node)


def test_a_profile_that_was_struck_off_is_refused_with_the_reason() -> None:
    node = Node(CARD)
    node.found[0].strike(19, "it was not to be had")
    with pytest.raises(DeviceError, match=r"no profile 1g5gb-19 now: it was not to be had; .*s;"):
        wanted(given(GOOD), node)
