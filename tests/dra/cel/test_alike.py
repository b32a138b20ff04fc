"""GPUs of one kind are described alike but for their identity, whatever fields GPUs and nodes have.

Each field of ``Gpu`` and of ``Inventory`` is changed in turn, whoever adds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from dra.cel.data import DeviceData, device_data
from dra.cel.offers import describe, kind_of, look
from dra.gpu.geometry import Placement
from dra.gpu.inventory import (
    AllocatorKind,
    ClaimRef,
    Drain,
    FailedClaim,
    Gpu,
    GpuHealth,
    GpuLayout,
    IdleInstance,
    Inventory,
    NodeMode,
    Publication,
    Takeover,
    TakeoverProgress,
)
from dra.gpu.names import NVIDIA_DRIVER
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from tests.controller.helpers.objects import gpu, instance, inventory
from tests.dra.gpus import THIRDS, facts_to_tell

_OTHERS: dict[str, tuple[Any, ...]] = {
    "pci_bus_id": ("0000:ff:00.0", ""),
    "pcie_root": ("pci0000:ff", ""),
    "geometry": (THIRDS, None),
    "claims": ((ClaimRef("ns", "c", "uid"),),),
    "instances": ((instance("1g.5gb", 0, uid="c"),),),
    "idle": ((IdleInstance(Placement(1, 1), "default", 19),),),
    "layout": (GpuLayout("all-1g", (Placement(1, 1),)),),
    "shares": (4, 5, 0),
    "slice_shares": (4, 5, 0),
    "health": (GpuHealth("Reset", "Failed", "Prohibited", ("note",), ("dcgm (1)",)),),
    "driver": (NVIDIA_DRIVER,),
    "gpus": ((),),
    "allocator": (AllocatorKind.SCHEDULER,),
    "publication": (Publication(done=False, reason="Refused"),),
    "drain": (Drain(),),
    "failed_claims": ((FailedClaim("default", "c", "uid-c", "2026-01-01T00:00:00Z"),),),
    "mode": (NodeMode("layout", "pending", "all-1g"),),
    "capabilities": (("HostUsersOnly",),),
    "takeover": (Takeover(wish="take", since="2026-01-01T00:00:00Z"),),
    "progress": (TakeoverProgress(since="2026-01-01T00:00:00Z", state="pending"),),
}
"""Other values of a field, where it is not a text, a number or yes and no."""


def _other_values(of: Gpu | Inventory, name: str) -> tuple[Any, ...]:
    value = getattr(of, name)
    if name in _OTHERS:
        return _OTHERS[name]
    assert isinstance(value, str | int), f"say other values of {name} in _OTHERS"
    return (not value if isinstance(value, bool) else type(value)("77"),)


def every_kind_of_device() -> Iterator[Inventory]:
    """GPUs in MIG mode, whole ones and shared ones, under both names of the driver; all told."""
    shares = 2
    for driver in ("mig.dra.dev", NVIDIA_DRIVER):
        for card in (
            gpu(1, slice_shares=shares),
            gpu(1, mig=False),
            gpu(1, mig=False, shares=shares),
        ):
            told = replace(card, pcie_root="pci0000:00", **facts_to_tell(card))
            yield replace(inventory("node-a", told), driver=driver)


def _changed(of: str) -> Iterator[tuple[Inventory, Gpu, Inventory, str]]:
    """A GPU of a node, and the node with a field of the GPU or of its own changed."""
    for node in every_kind_of_device():
        (card,) = node.gpus
        if of == "Gpu":
            for name in (f.name for f in fields(Gpu)):
                for value in _other_values(card, name):
                    changed = replace(card, **{name: value})
                    yield node, changed, node, name
        else:
            for name in (f.name for f in fields(Inventory)):
                for value in _other_values(node, name):
                    yield node, card, replace(node, **{name: value}), name


def described(card: Gpu, node: Inventory) -> dict[str, DeviceData]:
    kind = kind_of(card, node)
    return {o.name: describe(o, card, node) for o in kind.offers}


@pytest.mark.parametrize("of", ["Gpu", "Inventory"])
def test_gpus_that_are_described_alike_look_alike(of: str) -> None:
    telling: dict[str, bool] = {}
    for before, card, node, name in _changed(of):
        (first,) = before.gpus
        if look(card, node) != look(first, before):
            differs = described(first, before) != described(card, node)
            telling[name] = telling.get(name, False) or differs
    needless = [name for name, differs in telling.items() if not differs]
    assert needless == [], (
        f"no attribute or capacity follows from {needless} of {of}: have one follow in "
        f"dra/gpu/devices.py, or add them to the fields in dra/cel/offers.py that GPUs of a "
        f"kind may differ in, as kinds that selectors cannot tell apart are searched in vain"
    )


@pytest.mark.parametrize("of", ["Gpu", "Inventory"])
def test_selectors_see_what_is_published(of: str) -> None:
    for _, card, node, name in _changed(of):
        layout = SliceLayout(offered(replace(node, gpus=(card,)), {}, taints=True), Features())
        published = [
            device_data(
                node.driver,
                device["attributes"],
                device["capacity"],
                shared=device.get("allowMultipleAllocations", False),
            )
            for index in range(len(layout))
            for device in layout.spec(index, generation=1).get("devices", ())
        ]
        seen = [*described(card, node).values()]
        unlike = [d for d in seen if d not in published] + [d for d in published if d not in seen]
        assert unlike == [], (
            f"with another {of}.{name}, dra/cel/offers.py:describe and "
            f"dra/resourceslices/resourceslices.py give a device other attributes or capacities"
        )
