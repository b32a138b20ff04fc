"""What NVML refuses to tell of one GPU at discovery: what of it is left out, and nothing of others.

A call that is not in the table fails the test, so that each new one is thought of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

import sim.nvml
from dra.gpu.inventory import GpuReason
from kubeletplugin.nvml.errors import GpuNotFoundError, InstanceNotFoundError, NvmlError, translate
from kubeletplugin.nvml.gpus import Card, discover
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


CODES = (NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN)


UNKNOWN_GPU, UNUSABLE = "it is left out", "it is shown, and unavailable"


FACTS: dict[str, tuple[str, ...]] = {
    "nvmlDeviceGetName": ("product_name",),
    "nvmlDeviceGetCudaComputeCapability": ("cuda_compute_capability",),
    "nvmlDeviceGetArchitecture": ("architecture", "switches_mig"),
    "nvmlDeviceGetBrand": ("brand",),
    "nvmlDeviceGetPciInfo": ("pci_bus_id", "pci_device_id", "pci_subsystem_id"),
    "nvmlDeviceGetMemoryInfo": ("memory_mib",),
    "nvmlDeviceGetFieldValues": ("condition",),
    "nvmlDeviceGetGpuFabricInfoV": ("condition",),
    "nvmlDeviceGetVirtualizationMode": ("condition",),
    "nvmlDeviceGetComputeMode": ("condition",),
}
"""By call, the fields of the GPU that are left out."""


GPU = {
    "nvmlDeviceGetHandleByIndex": UNKNOWN_GPU,
    "nvmlDeviceGetUUID": UNKNOWN_GPU,
    "nvmlDeviceGetMinorNumber": UNKNOWN_GPU,
    "nvmlDeviceGetMigMode": UNUSABLE,
    "nvmlDeviceGetGpuInstanceProfileInfo": UNUSABLE,
    "nvmlDeviceGetGpuInstancePossiblePlacements": UNUSABLE,
}
"""By call, what becomes of the GPU; NOT_SUPPORTED says that it has no MIG, or not that profile."""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine.create(tmp_path / "hw", [GpuSpec("A30", mig=True)] * 2)
    sim.nvml.install(machine.directory)
    yield machine
    machine.clear_faults()


def opened(calls: set[str] | None = None) -> Session:
    heard = set() if calls is None else calls
    session = Session(on_call=lambda name, _code, _seconds: heard.add(name))
    session.open()
    heard.clear()
    return session


def left_out(card: Card, fields: tuple[str, ...], found: Card) -> Card:
    return replace(card, **{field: getattr(found, field) for field in (*fields, "silent")})


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", [*FACTS, *GPU])
def test_a_refusal_costs_one_gpu_what_the_call_would_tell(
    machine: Machine, function: str, code: int
) -> None:
    session = opened()
    whole = discover(session).cards
    by_index = function == "nvmlDeviceGetHandleByIndex"  # which is a call for no GPU yet
    where, times = (None, 1) if by_index else (0, 0)
    machine.inject(
        Fault(function=f"{function}*", action="return", gpu=where, code=code, times=times)
    )
    discovery = discover(session)
    assert whole[1] in discovery.cards, "the other GPU is as before"
    found = [card for card in discovery.cards if card.uuid == whole[0].uuid]
    if function in FACTS:
        [card] = found
        assert card.reason == "", card.problem
        assert card == left_out(whole[0], FACTS[function], card)
        for field in FACTS[function]:
            assert not getattr(card, field) or field in {"architecture", "condition"}
        assert card != replace(whole[0], silent=card.silent) or function.endswith(
            "VirtualizationMode"
        )
        assert discovery.problems == ()
    elif GPU[function] is UNKNOWN_GPU:
        assert found == []
        assert len(discovery.problems) == 1
    elif code == NOT_SUPPORTED:
        [card] = found
        assert card.reason == ""
        assert not card.geometry or not card.geometry.profiles
    else:
        [card] = found
        assert card.reason == GpuReason.NVML_ERROR
        assert function in card.problem


# -- codes of NVML as errors


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("nvmlDeviceGetHandleByPciBusId", GpuNotFoundError),
        ("nvmlDeviceGetHandleByIndex", GpuNotFoundError),
        ("nvmlDeviceGetGpuInstanceById", InstanceNotFoundError),
        ("nvmlGpuInstanceGetComputeInstanceById", InstanceNotFoundError),
        ("nvmlGpuInstanceDestroy", InstanceNotFoundError),
    ],
)
def test_a_gpu_that_is_missing_is_no_instance_that_is_gone(
    operation: str, kind: type[NvmlError]
) -> None:
    assert type(translate(operation, pynvml.NVML_ERROR_NOT_FOUND, gpu="GPU-1")) is kind
