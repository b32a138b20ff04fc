"""NVIDIA's DRA driver is recognised by what it writes, and whether it makes MIG devices."""

from __future__ import annotations

import pytest

from dra.common.resources import Obj
from dra.resourceslices.nvidiadra import DEPLOY_LABEL, dra_driver, summary
from tests.dra.resourceslices.nvidiaslices import (
    counter_slice,
    found_mig,
    future_mig,
    gpu,
    resource_slice,
)


def node(label: str | None) -> Obj:
    return {"metadata": {"labels": {} if label is None else {DEPLOY_LABEL: label}}}


@pytest.mark.parametrize(
    ("slices", "sign", "makes_devices"),
    [
        ([counter_slice("n")], None, None),
        ([resource_slice("n", gpu(0), gpu(1))], "2 GPUs", False),
        (
            [resource_slice("n", gpu(0), found_mig(0), found_mig(1))],
            "1 GPUs, 2 MIG devices that it found",
            False,
        ),
        (
            [counter_slice("n"), resource_slice("n", gpu(0, partitionable=True), future_mig(0))],
            "1 GPUs, 1 MIG devices to be made on demand",
            True,
        ),
        ([resource_slice("n", future_mig(0, dropped=True))], "to be made on demand", True),
        (
            [resource_slice("n", gpu(0)), resource_slice("n", future_mig(0), future_mig(1))],
            "2 MIG devices to be made on demand",
            True,
        ),
        (
            [resource_slice("n", {"name": "v", "attributes": {"type": {"string": "vfio"}}})],
            "1 GPUs for virtual machines",
            False,
        ),
        ([resource_slice("n", {"name": "odd"})], "devices of type unknown", False),
        (
            [
                resource_slice(
                    "n", {"name": "m", "attributes": {"gpu.nvidia.com/type": {"string": "mig"}}}
                )
            ],
            "to be made on demand",
            True,
        ),
    ],
)
def test_its_slices_say_what_it_does(
    slices: list[Obj], sign: str | None, makes_devices: object
) -> None:
    found = dra_driver(node(None), [summary(each) for each in slices])
    assert (found is not None) == (sign is not None)
    if found is not None and sign is not None:
        assert sign in found.sign
        assert found.makes_devices is makes_devices
