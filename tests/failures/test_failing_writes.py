"""Whichever write of the journal fails, the hardware is undone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.failures.agreement import check_settled, own_instances
from tests.failures.plant import Plant
from tests.failures.site import Site
from tests.failures.steps import Step, StepRecorder, hooked

TWO_SLICES = ("gpu-0-mig-1g5gb-19-4", "gpu-1-mig-2g10gb-14-0")
WRITES = 7
"""Those of an undisturbed Prepare of two slices."""


@pytest.fixture
def plant(folder: Path) -> Iterator[Plant]:
    with hooked(StepRecorder(in_process=True)) as recorder:
        plant = Plant(Site.create(folder / "n"), recorder)
        plant.start()
        yield plant


def journal(plant: Plant) -> Path:
    return plant.site.roots.state / "journal.json"


def refuse_writes(plant: Plant, fails: Callable[[int], bool]) -> list[int]:
    """Refuse writes of the journal for whose number ``fails`` holds, as a full disk does."""
    count = [0]

    def refuse(step: Step) -> OSError | None:
        if step.name != "open" or not step.path.startswith(str(journal(plant))):
            return None
        count[0] += 1
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(journal(plant)))
        return full if fails(count[0]) else None

    plant.recorder.refuse = refuse
    return count


def end_of_trouble(plant: Plant) -> None:
    plant.recorder.refuse = lambda step: None


@pytest.mark.parametrize("nth", range(1, WRITES + 2))
def test_a_write_that_fails_undoes_the_hardware(plant: Plant, nth: int) -> None:
    ref = plant.site.claim("claim", TWO_SLICES)
    count = refuse_writes(plant, lambda number: number == nth)
    error = plant.prepare(ref).error
    end_of_trouble(plant)
    if nth <= WRITES:
        assert "No space left on device" in error
        assert str(journal(plant)) in error
        check_settled(plant.site, {})
    else:
        assert not error
        assert count == [WRITES]
    assert not plant.prepare(ref).error
    check_settled(plant.site, {ref: TWO_SLICES})


@pytest.mark.parametrize("nth", range(1, WRITES + 1))
def test_a_disk_that_stays_full_leaves_no_instance_behind(plant: Plant, nth: int) -> None:
    ref = plant.site.claim("claim", TWO_SLICES)
    refuse_writes(plant, lambda number: number >= nth)
    assert "No space left on device" in plant.prepare(ref).error
    assert own_instances(plant.site, ()) == []
    assert not list(plant.site.roots.cdi.glob("*"))
    end_of_trouble(plant)
    assert not plant.prepare(ref).error
    check_settled(plant.site, {ref: TWO_SLICES})
    assert not plant.unprepare(ref).error
    check_settled(plant.site, {})
