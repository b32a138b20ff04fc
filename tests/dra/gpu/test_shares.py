"""Shares of a GPU: what a claim gets, what fits beside others, and how allocations say so."""

from __future__ import annotations

from typing import Any

import pytest

from dra.claims.allocation import AllocatedDevice, read_allocation
from dra.gpu.shares import Ask, Share, sum_of, why_full

GPU_MIB = 40960
FOUR = 4


@pytest.mark.parametrize(
    ("held", "share", "why"),
    [
        ([], Share(GPU_MIB, 100, "a"), ""),
        ([], Share(GPU_MIB + 1, 0, "a"), "40960 of 40960 MiB are left, 40961 are asked for"),
        ([Share(1, 0, "a")] * 3, Share(1, 0, "a"), ""),
        ([Share(1, 0, "a")] * 4, Share(1, 0, "a"), "all 4 shares are in use"),
        ([Share(1, 0, "b")], Share(1, 0, "a"), "another namespace's"),
        ([Share(1, 0, "*")], Share(1, 0, "a"), "another namespace's"),
        ([Share(1, 0, "*")], Share(1, 0, "*"), ""),
        ([Share(40000, 0, "a")], Share(961, 0, "a"), "960 of 40960 MiB are left"),
        ([Share(1, 71, "a")], Share(1, 30, "a"), "29 of 100 % of the cores are left"),
        ([Share(1, 70, "a")], Share(1, 30, "a"), ""),
    ],
)
def test_a_share_fits_beside_others_by_number_tenant_memory_and_cores(
    held: list[Share], share: Share, why: str
) -> None:
    found = why_full(sum_of(held), share, FOUR, GPU_MIB)
    assert why in found
    assert bool(found) == bool(why)


def read(result: dict[str, Any], *config: dict[str, Any]) -> AllocatedDevice:
    common = {"request": "r", "driver": "mig.dra.dev", "pool": "p", "device": "gpu-0"}
    devices = {"results": [common | result], "config": [*config]}
    return read_allocation({"devices": devices}).devices[0]


def opaque(source: str, share: dict[str, Any], *requests: str) -> dict[str, Any]:
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "GpuConfig", "share": share}
    held = {"driver": "mig.dra.dev", "parameters": parameters}
    return {"source": source, "requests": [*requests], "opaque": held}


@pytest.mark.parametrize(
    ("result", "config", "expected"),
    [
        ({}, [], Ask()),
        ({}, [opaque("FromClass", {"memoryMiB": 8000, "cores": 30})], Ask(8000, 30)),
        ({}, [opaque("FromClass", {"memoryMiB": 8000}, "other")], Ask()),
        (
            {},
            [opaque("FromClass", {"memoryMiB": 8000}), opaque("FromClaim", {"memoryMiB": 4000})],
            Ask(4000),
        ),
        ({}, [opaque("FromClass", {"tenants": "any"})], Ask(anybody=True)),
        ({}, [opaque("FromClaim", {"tenants": "any"})], Ask()),
        (
            {"consumedCapacity": {"memory": "8000Mi", "cores": "25", "shares": "1"}},
            [opaque("FromClass", {"memoryMiB": 4000, "tenants": "any"})],
            Ask(8000, 25, anybody=True),
        ),
    ],
)
def test_an_allocation_says_how_much_of_the_gpu_it_is(
    result: dict[str, Any], config: list[dict[str, Any]], expected: Ask
) -> None:
    assert read(result, *config).ask == expected
