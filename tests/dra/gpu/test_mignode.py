from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from api import mignode as wire
from api.errors import InvalidObjectError
from dra.gpu.geometry import Geometry, Placement
from dra.gpu.inventory import (
    AllocatorKind,
    ClaimRef,
    Gpu,
    GpuFacts,
    Instance,
    InstanceState,
    Inventory,
)
from dra.gpu.mignode import from_mignode, to_mignode
from tests.dra.gpus import A100, THIRDS, facts_to_tell, node_of, sliced_gpu

HELD = Instance(
    Placement(4, 4),
    InstanceState.PREPARED,
    profile_id=9,
    profile="3g.20gb",
    gpu_instance_id=1,
    compute_instance_id=0,
    uuid="MIG-1",
    claim=ClaimRef("default", "big", "uid-1"),
)
INVENTORY = Inventory(
    node="node-a",
    pool="node-a",
    driver="mig.dra.dev",
    allocator=AllocatorKind.SCHEDULER,
    driver_version="570.86.10",
    cuda_driver_version="12.8",
    cdi_hook="/usr/bin/nvidia-cdi-hook",
    gpus=(
        Gpu(
            minor=0,
            uuid="GPU-0",
            product_name="NVIDIA A100-SXM4-40GB",
            brand="Nvidia",
            architecture="Ampere",
            cuda_compute_capability="8.0",
            pci_bus_id="0000:07:00.0",
            pcie_root="pci0000:00",
            memory_mib=40960,
            multiprocessors=108,
            mig_enabled=True,
            mig_pending=True,
            geometry=A100,
            instances=(HELD,),
        ),
        Gpu(minor=1, uuid="GPU-1", mig_enabled=True, mig_pending=True, geometry=A100),
        Gpu(minor=3, uuid="GPU-3", geometry=THIRDS, reason="MigDisabled", unavailable="MIG is off"),
        Gpu(minor=4, uuid="GPU-4"),
    ),
)


def test_an_inventory_survives_the_way_through_the_api() -> None:
    assert from_mignode(to_mignode(INVENTORY)) == INVENTORY


def test_every_fact_of_a_gpu_survives_the_way_through_the_api() -> None:
    told = replace(Gpu(0, "GPU-0"), **facts_to_tell(Gpu(0, "GPU-0")))
    (read,) = from_mignode(to_mignode(replace(INVENTORY, gpus=(told,)))).gpus
    lost = [f.name for f in fields(GpuFacts) if getattr(read, f.name) != getattr(told, f.name)]
    assert lost == [], "add the fields to api/mignode.py:GpuField and to api/crds/mignodes.yaml"


def test_zeros_that_mean_something_are_written() -> None:
    obj = to_mignode(INVENTORY)
    instance = obj["status"]["gpus"][0]["instances"][0]
    assert instance["placement"] == {"start": 4, "size": 4}
    assert instance["computeInstanceID"] == 0
    assert obj["status"]["gpus"][3]["migMode"] == {"enabled": False, "pending": False}
    largest = obj["status"]["geometries"][0]["profiles"][-1]
    assert (largest["name"], largest["id"], largest["starts"]) == ("7g.40gb", 0, [0])


def test_the_summary_tells_what_is_free_and_the_largest_slice_to_be_had() -> None:
    foreign = Instance(Placement(0, 4), InstanceState.FOREIGN, profile_id=5)
    first, second, *others = INVENTORY.gpus
    broken = replace(second, memory_mib=40960, unavailable="mode change pending")
    inventory = replace(
        INVENTORY, gpus=(replace(first, instances=(HELD,)), replace(broken, minor=5), *others)
    )
    summary = to_mignode(inventory)["status"]["summary"]
    assert (summary["slices"], summary["largest"]) == (1, "4g.20gb")
    assert summary["unavailable"] == "1 MigDisabled, 1 Unavailable"
    assert summary["freeMemory"] == "20Gi", "of four slices on gpu-0; gpu-5 offers nothing"
    full = replace(inventory, gpus=(replace(first, instances=(HELD, foreign)), *others))
    summary = to_mignode(full)["status"]["summary"]
    assert summary["slices"] == 1, "a foreign instance is none of ours"
    assert summary["largest"] == ""


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"spec": {"driver": "d", "pool": "p"}}, "allocator"),
        ({"spec": "x"}, "object"),
        ({"status": {"gpus": [{"name": "gpu-0", "uuid": 4, "migMode": {}}]}}, "gpus[0].uuid"),
    ],
)
def test_a_broken_object_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    obj = to_mignode(INVENTORY) | change
    with pytest.raises(InvalidObjectError, match="MigNode") as error:
        from_mignode(obj)
    assert field in str(error.value)


def test_fields_of_a_newer_version_are_ignored() -> None:
    obj = to_mignode(INVENTORY)
    obj["status"]["gpus"][0]["temperature"] = 40
    assert from_mignode(obj) == INVENTORY


def test_what_a_mignode_cannot_hold_takes_nothing_else_with_it() -> None:
    """More geometries than there may be, texts without end, and a name that no class can have."""
    found = []
    for number in range(wire.MOST_GEOMETRIES + 2):
        (first, *others) = A100.profiles
        geometry = Geometry((replace(first, memory_mib=first.memory_mib + number), *others))
        found.append(replace(sliced_gpu(number, geometry), uuid=f"GPU-{number}"))
    odd = replace(A100.profiles[0], id=99, name="1g.5gb me")
    found[1] = replace(found[1], geometry=Geometry((odd, *A100.profiles)))
    found[0] = replace(found[0], unavailable="x" * 10_000, reason="Unavailable")
    read = from_mignode(to_mignode(node_of(*found)))
    *told, ninth, tenth = read.gpus
    assert all(gpu.geometry is not None for gpu in told)
    assert told[1].geometry == A100
    assert 1000 < len(told[0].unavailable) < 10_000
    for gpu in (ninth, tenth):
        assert gpu.geometry is None
        assert "more than 8 different geometries" in gpu.unavailable
