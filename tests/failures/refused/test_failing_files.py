"""Whichever change of a file fails, and for how long: nothing leaks, and all is well after it."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.failures.helpers.agreement import check_settled, own_instances
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.steps import Step

TWO_SLICES = ("gpu-0-mig-1g5gb-19-4", "gpu-1-mig-2g10gb-14-0")
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)
LEAST_CHANGES, MOST_CHANGES = 10, 200
WRITES = 7
"""Those of the journal in an undisturbed Prepare of two slices."""


@contextmanager
def failing(plant: Plant, error: int, fails: Callable[[int], bool]) -> Iterator[list[Step]]:
    """Changes of the program's files fail for whose number ``fails`` holds; returns all tried."""
    tried: list[Step] = []
    folders = (plant.site.roots.state, plant.site.roots.cdi)

    def refuse(step: Step) -> OSError | None:
        if step.kind != "file" or not any(map(Path(step.path).is_relative_to, folders)):
            return None
        tried.append(step)
        if error == errno.ENOSPC and step.name == "unlink":
            return None
        return OSError(error, os.strerror(error), step.path) if fails(len(tried)) else None

    plant.recorder.refuse = refuse
    try:
        yield tried
    finally:
        plant.recorder.refuse = lambda step: None


def numbers() -> Iterator[tuple[int, int]]:
    """Numbers of changes, each with one of the errors."""
    return zip(itertools.count(1), itertools.cycle(ERRORS), strict=False)


def journal_writes(plant: Plant, tried: list[Step]) -> int:
    """Number of times that the journal was written."""
    path = str(plant.site.roots.state / "journal.json")
    return sum(s.name == "open" and s.path.startswith(path) for s in tried)


def check_told(failed: str, number: int, error: int, tried: list[Step]) -> None:
    """Kubelet hears what failed, and where."""
    assert os.strerror(error) in failed
    assert str(Path(tried[number - 1].path).parent) in failed


def test_whichever_change_of_a_prepare_fails_the_slices_are_undone_or_given(plant: Plant) -> None:
    for number, error in numbers():
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        with failing(plant, error, lambda n: n == number) as tried:  # noqa: B023 - called here
            failed = plant.prepare(ref).error
        if failed:
            check_told(failed, number, error, tried)
        check_settled(plant.site, {} if failed else {ref: TWO_SLICES})
        assert not plant.unprepare(ref).error
        check_settled(plant.site, {})
        if len(tried) < number:
            break
    assert LEAST_CHANGES < number < MOST_CHANGES
    assert journal_writes(plant, tried) == WRITES


def test_from_whichever_change_of_a_prepare_on_nothing_can_be_written(plant: Plant) -> None:
    for number, error in numbers():
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        with failing(plant, error, lambda n: n >= number) as tried:  # noqa: B023 - called here
            failed = plant.prepare(ref).error
            if len(tried) < number:
                break
        check_told(failed, number, error, tried)
        assert not own_instances(plant.site, ())
        assert error != errno.ENOSPC or not list(plant.site.roots.cdi.glob("*claim*.yaml"))
        assert not plant.prepare(ref).error
        check_settled(plant.site, {ref: TWO_SLICES})
        assert not plant.unprepare(ref).error
        check_settled(plant.site, {})
    assert LEAST_CHANGES < number < MOST_CHANGES


def test_from_whichever_change_of_an_unprepare_on_nothing_can_be_written(plant: Plant) -> None:
    for number, error in numbers():
        ref = plant.site.claim(f"claim-{number}", TWO_SLICES)
        assert not plant.prepare(ref).error
        with failing(plant, error, lambda n: n >= number) as tried:  # noqa: B023 - called here
            failed = plant.unprepare(ref).error
            plant.tend()
        if failed:
            assert not plant.unprepare(ref).error
        plant.tend()
        check_settled(plant.site, {})
        if len(tried) < number:
            break
    assert LEAST_CHANGES < number < MOST_CHANGES
