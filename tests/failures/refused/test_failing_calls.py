"""Whichever call of NVML fails, nothing leaks, and what could not be removed is removed later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from sim.nvml.faults import Fault
from tests.failures.helpers.agreement import check_claim, check_settled, entries
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.steps import Step

TWO_SLICES = ("gpu-0-mig-1g5gb-19-4", "gpu-1-mig-2g10gb-14-0")
LEAST_CALLS, MOST_CALLS = 20, 400
UNKNOWN_ERROR = 999
MEANWHILE_RESET = 29
"""No code that a repeated call would help against."""


class Failing:
    """The call of that number fails, once. ``reached``: there was one."""

    def __init__(self, plant: Plant, number: int, *, code: int = 0) -> None:
        self._plant = plant
        self._number = number
        self._fault = Fault(id="failing", function="*", action="return", code=code)
        self._seen = 0

    @property
    def reached(self) -> bool:
        return self._seen > self._number

    def __call__(self, step: Step) -> None:
        if step.kind != "nvml":
            return
        if self._seen == self._number:
            with self._plant.recorder.outside():
                self._fail()
        self._seen += 1

    def _fail(self) -> None:
        self._plant.site.machine.inject(self._fault)


class Losing(Failing):
    """From the call of that number on the first GPU is lost."""

    def _fail(self) -> None:
        self._plant.site.machine.lose(0)


@contextmanager
def during(plant: Plant, fault: Failing) -> Iterator[Failing]:
    plant.recorder.refuse = fault
    try:
        yield fault
    finally:
        plant.recorder.refuse = lambda step: None
        plant.site.machine.clear_faults()


def test_whichever_call_of_a_prepare_fails_nothing_leaks(plant: Plant) -> None:
    refused = 0
    for number in itertools.count():
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        with during(plant, Failing(plant, number, code=MEANWHILE_RESET)) as fault:
            error = plant.prepare(ref).error
        if error:
            refused += 1
            assert f"({MEANWHILE_RESET})" in error
            assert ref.uid in error
        else:
            check_claim(plant.site, ref, TWO_SLICES)
            assert not plant.unprepare(ref).error
        check_settled(plant.site, {})
        if not fault.reached:
            break
    assert LEAST_CALLS < number < MOST_CALLS
    # What fails after the answer is decided, the look at the GPU, does not fail the claim.
    assert refused > number // 3


def test_whichever_call_of_a_prepare_fails_in_passing_it_succeeds(plant: Plant) -> None:
    for number in itertools.count(step=3):
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        with during(plant, Failing(plant, number, code=UNKNOWN_ERROR)) as fault:
            assert not plant.prepare(ref).error
        check_claim(plant.site, ref, TWO_SLICES)
        assert not plant.unprepare(ref).error
        check_settled(plant.site, {})
        if not fault.reached:
            break
    assert LEAST_CALLS < number < MOST_CALLS


def test_whichever_call_of_an_unprepare_fails_the_rest_is_done_in_the_background(
    plant: Plant,
) -> None:
    unavailable = 0
    for number in itertools.count():
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        assert not plant.prepare(ref).error
        with during(plant, Failing(plant, number, code=MEANWHILE_RESET)) as fault:
            assert not plant.unprepare(ref).error
        unavailable += bool(entries(plant.site))
        plant.tend()
        check_settled(plant.site, {})
        if not fault.reached:
            break
    assert LEAST_CALLS < number < MOST_CALLS
    assert unavailable > 5


def back(plant: Plant) -> None:
    """The GPU comes back, reset."""
    plant.look()
    plant.site.machine.recover(0)
    plant.recorder.skipped += 3600.0
    for _ in range(2):
        plant.look()
        plant.tend()


def test_from_whichever_call_of_a_prepare_on_the_gpu_is_lost(plant: Plant) -> None:
    failed = 0
    for number in itertools.count(step=4):
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        with during(plant, Losing(plant, number)) as fault:
            error = plant.prepare(ref).error
        failed += bool(error)
        if fault.reached:
            back(plant)
        check_settled(plant.site, {} if error else {ref: TWO_SLICES})
        assert not plant.unprepare(ref).error
        check_settled(plant.site, {})
        if not fault.reached:
            break
    assert LEAST_CALLS < number < MOST_CALLS
    assert failed > 3


def test_from_whichever_call_of_an_unprepare_on_the_gpu_is_lost(plant: Plant) -> None:
    for number in itertools.count(step=4):
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        assert not plant.prepare(ref).error
        with during(plant, Losing(plant, number)) as fault:
            assert not plant.unprepare(ref).error
        if not fault.reached:
            break
        back(plant)
        check_settled(plant.site, {})
    assert LEAST_CALLS < number < MOST_CALLS
