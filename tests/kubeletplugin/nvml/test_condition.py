"""The condition of a GPU: what the driver says of it, and what of that keeps slices away."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra.gpu.inventory import GpuReason
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.nvml.condition import UNSAID, Condition, read_condition
from kubeletplugin.nvml.errors import GpuLostError
from kubeletplugin.nvml.gpus import discover
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants

WITHOUT_VERDICT = Variants(recovery_action="none")
_READING = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlSystemGetConfComputeState",
)


@pytest.fixture
def mig() -> bool:
    return True


@pytest.fixture
def machine(tmp_path: Path, *, mig: bool) -> Machine:
    return Machine.create(tmp_path / "hw", [GpuSpec("H100-80GB-HBM3", mig=mig)])


def seen(session: Session) -> GpuUnit:
    (card,) = discover(session).cards
    return GpuUnit(0, card)


def again(session: Session, before: Condition) -> Condition:
    device = session.take(0)
    return read_condition(session, device.handle, gpu=device.uuid, before=before)


REQUIRED, ADVISED = GpuReason.RECOVERY_REQUIRED, GpuReason.RECOVERY_ADVISED


@pytest.mark.parametrize(
    ("action", "reason", "words"),
    [
        (0, "", ""),
        (1, REQUIRED, "nvidia-smi -r -i GPU-"),
        (2, REQUIRED, "reboot the node"),
        (3, ADVISED, "peer-to-peer"),
        (4, ADVISED, "what runs may go on"),
        (5, "", ""),
        (6, REQUIRED, "BusReset"),
        (7, REQUIRED, "SystemReboot"),
        (8, REQUIRED, "action 8, which this version does not know"),
        (0xFF, "", ""),
    ],
)
def test_the_recovery_action_decides(
    machine: Machine, session: Session, action: int, reason: str, words: str
) -> None:
    machine.ask_recovery(0, action)
    found, text = seen(session).problem
    assert found == reason
    assert words in text


FOUND: list[tuple[dict[str, int], bool, str]] = [
    ({"fabric": 1}, True, GpuReason.FABRIC_NOT_READY),
    ({"fabric": 2}, False, GpuReason.FABRIC_NOT_READY),
    ({"fabric": 3}, True, ""),
    ({"fabric": 0}, True, ""),
    ({"compute_mode": 2}, True, GpuReason.COMPUTE_MODE),
    ({"compute_mode": 2}, False, GpuReason.COMPUTE_MODE),
    ({"compute_mode": 3}, False, GpuReason.COMPUTE_MODE),
    ({"compute_mode": 3}, True, ""),
    ({"virtualization": 1}, True, ""),
    ({"virtualization": 2}, True, GpuReason.VIRTUALIZED),
    ({"virtualization": 2}, False, ""),
    ({"virtualization": 3}, False, GpuReason.VIRTUALIZED),
    ({"virtualization": 4}, True, GpuReason.VIRTUALIZED),
    ({"remap_pending": True}, True, ""),
    ({"remap_failed": True}, True, ""),
    ({"ecc_pending": False}, True, ""),
]


@pytest.mark.parametrize(("fields", "mig", "reason"), FOUND)
def test_what_keeps_slices_and_gpus_from_running_programs_is_a_reason(
    machine: Machine, session: Session, fields: dict[str, int], reason: str
) -> None:
    machine.disturb(0, **fields)
    known = seen(session)
    assert known.problem[0] == reason
    assert bool(known.unwell) == bool(reason)
    assert ("FABRIC_MODE" in known.problem[1]) == (reason == GpuReason.FABRIC_NOT_READY)


def test_without_a_verdict_a_row_that_could_not_be_remapped_decides(
    machine: Machine, session: Session
) -> None:
    machine.configure(variants=WITHOUT_VERDICT)
    machine.ask_recovery(0, 1)
    assert seen(session).problem == ("", "")
    machine.disturb(0, remap_failed=True)
    assert seen(session).problem[0] == REQUIRED


@pytest.mark.parametrize("accepts", [False, True])
def test_with_confidential_computing_gpus_wait_until_they_are_ready(
    machine: Machine, session: Session, *, accepts: bool
) -> None:
    machine.configure(confidential=True, accepts_work=not accepts)
    before = seen(session).card.condition
    machine.configure(accepts_work=accepts)
    now = again(session, before)
    assert now == seen(session).card.condition != before
    assert seen(session).problem[0] == ("" if accepts else GpuReason.CONFIDENTIAL)


@pytest.mark.parametrize("code", [3, 13, 999], ids=["unsupported", "missing", "unknown"])
def test_a_driver_that_says_nothing_makes_nothing_unavailable(
    machine: Machine, session: Session, code: int
) -> None:
    machine.ask_recovery(0, 1)
    for function in _READING:
        machine.inject(Fault(function=function, action="return", code=code, times=0))
    known = seen(session)
    assert known.card.condition == UNSAID
    assert known.problem == ("", "")


def test_a_lost_gpu_is_no_condition(machine: Machine, session: Session) -> None:
    before, device = seen(session).card.condition, session.take(0)
    machine.lose(0)
    with pytest.raises(GpuLostError):
        read_condition(session, device.handle, gpu=device.uuid, before=before)
