"""A slice of an A100 as selectors see it."""

from __future__ import annotations

from dra.cel.data import DeviceData, device_data
from dra.cel.selectors import Selectors
from dra.gpu.devices import slice_attributes, slice_capacity
from tests.controller.helpers.objects import DRIVER, gpu, inventory
from tests.dra.gpus import A100

OWN = f'device.attributes["{DRIVER}"]'
SELECTORS = Selectors()
"""One for all: to make its environment takes as long as fifty evaluations."""

MEMORY = f'device.capacity["{DRIVER}"].memory'


def small_slice(node: str = "node-a", minor: int = 0) -> DeviceData:
    card = gpu(minor, node)
    profile = A100.by_name("1g.5gb")
    assert profile is not None
    return device_data(
        DRIVER, slice_attributes(card, profile, inventory(node, card)), slice_capacity(profile)
    )
