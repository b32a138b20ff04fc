"""What is wrong with a GPU or a slice, and when that is over: signs, looks and time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef, Gpu, GpuReason, Instance, InstanceState
from kubeletplugin import times
from kubeletplugin.gpus.health import DeviceHealth, GpuProblem, device_health
from kubeletplugin.journal.entries import State
from tests.kubeletplugin.gpus.test_gpu_description import ENTRY

SLICE = Instance(Placement(0, 1), InstanceState.PREPARED, gpu_instance_id=1, uuid="MIG-1")


OTHER = Instance(Placement(1, 1), InstanceState.PREPARED, gpu_instance_id=2, uuid="MIG-2")


GPU = Gpu(0, "GPU-a", instances=(SLICE, OTHER))


EMPTY = replace(GPU, instances=())


SICK = replace(GPU, unavailable="it does not answer", reason=GpuReason.NVML_ERROR)


WHOLE = GpuProblem("GPU-a", GpuReason.XID_ERROR, "XID 48", 100.0, beside=frozenset({"MIG-1"}))


RESET = replace(WHOLE, message="XID 79", needs_reset=True)


DENIED = replace(WHOLE, reason=GpuReason.NO_PERMISSION, beside=frozenset({"MIG-1", "MIG-2"}))


OF_SLICE = replace(WHOLE, message="XID 43", gi_id=1, blocks=False)


SOON, QUIET = 100.0 + times.QUIET_SECONDS - 0.1, 100.0 + times.QUIET_SECONDS


def with_slice(state: InstanceState) -> Gpu:
    return replace(GPU, instances=(structs.replace(SLICE, state=state), OTHER))


PASSED = {
    "a GPU, soon after": (WHOLE, GPU, SOON, False),
    "a GPU, after a quiet time": (WHOLE, GPU, QUIET, True),
    "a GPU that does not answer": (WHOLE, SICK, QUIET, False),
    "a GPU that is back and does not answer": (replace(WHOLE, away=True), SICK, QUIET, False),
    "a GPU that was away and is back": (replace(RESET, away=True), GPU, SOON, True),
    "a GPU that needs a reset": (RESET, GPU, QUIET, False),
    "one whose slices went without an Unprepare": (
        RESET,
        with_slice(InstanceState.LOST),
        SOON,
        True,
    ),
    "one of whose slices some went so": (
        replace(RESET, beside=frozenset({"MIG-1", "MIG-2"})),
        with_slice(InstanceState.LOST),
        SOON,
        False,
    ),
    "one whose slices were removed": (RESET, EMPTY, QUIET, False),
    "one that had no slices": (replace(RESET, beside=frozenset()), EMPTY, QUIET, False),
    "one that could not be changed": (DENIED, GPU, QUIET, False),
    "one that could be since": (replace(DENIED, beside=frozenset({"MIG-1"})), GPU, SOON, True),
    "one from which a slice could be removed since": (DENIED, EMPTY, SOON, True),
    "a slice, soon after": (OF_SLICE, GPU, SOON, False),
    "a slice, after a quiet time": (OF_SLICE, GPU, QUIET, True),
    "a slice that is made again": (OF_SLICE, with_slice(InstanceState.PREPARING), SOON, False),
    "a slice that is being removed": (OF_SLICE, with_slice(InstanceState.RECLAIMING), SOON, True),
    "a slice that is gone": (OF_SLICE, EMPTY, SOON, True),
    "a slice that was lost": (OF_SLICE, with_slice(InstanceState.LOST), SOON, True),
    "a slice in whose place is one without a name": (
        replace(OF_SLICE, beside=frozenset({""})),
        replace(GPU, instances=(structs.replace(SLICE, uuid=""),)),
        SOON,
        True,
    ),
}


@pytest.mark.parametrize("case", PASSED)
def test_a_problem_is_over_when_its_cause_is(case: str) -> None:
    problem, gpu, now, expected = PASSED[case]
    assert problem.has_passed(gpu, now=now) is expected


# -- the health of devices as kubelet is told of it, by pool and name


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
