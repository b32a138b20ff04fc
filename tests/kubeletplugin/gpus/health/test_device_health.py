"""The health of devices as kubelet is told of it, by pool and name."""

from __future__ import annotations

from dataclasses import replace

from dra.gpu.inventory import ClaimRef, Gpu
from kubeletplugin.gpus.health import DeviceHealth, device_health
from kubeletplugin.journal.entries import State
from tests.kubeletplugin.gpus.test_gpu_description import ENTRY

SEEN = Gpu(3, ENTRY.gpu)


def test_a_device_that_several_claims_have_is_told_of_once_and_ill_if_it_is_for_one() -> None:
    others = [
        replace(ENTRY, claim=ClaimRef("default", name, name), state=state, note="gone")
        for name, state in (("lost", State.LOST), ("well", State.PREPARED), ("go", State.LEFTOVER))
    ]
    beside = replace(ENTRY, device="gpu-3-mig-1g5gb-19-0")
    assert device_health([ENTRY, *others, beside], [SEEN]) == (
        DeviceHealth("", ENTRY.device, "gone"),
        DeviceHealth("", beside.device, ""),
    )
