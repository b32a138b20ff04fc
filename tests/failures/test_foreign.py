"""Instances that others made exactly where a claim's slice belongs are never touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.failures.agreement import check_foreign, check_settled
from tests.failures.plant import Plant, Site
from tests.failures.steps import Recorder, Step, hooked

DEVICE = "gpu-0-mig-3g20gb-9-4"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
def plant(short_folder: Path) -> Iterator[Plant]:
    with hooked(Recorder()) as recorder:
        plant = Plant(Site.create(short_folder / "n"), recorder)
        plant.start()
        yield plant


def foreign(site: Site, *, compute: bool) -> set[int]:
    """Somebody's instance of the claim's own shape, in its place; its key."""
    site.machine.create_slice(0, "3g.20gb", start=4, compute=compute)
    return {g.key for g in site.machine.gpu(0).gpu_instances}


@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_in_the_place_of_a_new_claim_is_named_and_stays(
    plant: Plant,
    compute: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    keys = foreign(plant.site, compute=compute)
    ref = plant.site.claim("new", [DEVICE])
    for _ in range(2):
        assert "did not make" in plant.prepare(ref).error
        check_foreign(plant.site, keys)
    assert not plant.unprepare(ref).error
    plant.tend()
    check_settled(plant.site, {}, keys)


@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_that_comes_at_the_last_moment_stays(
    plant: Plant,
    compute: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    keys: set[int] = set()

    def first(step: Step) -> OSError | None:
        if step.name == CREATE and not keys:
            with plant.recorder.outside():
                keys.update(foreign(plant.site, compute=compute))
        return None

    plant.recorder.refuse = first
    ref = plant.site.claim("new", [DEVICE])
    assert "INSUFFICIENT_RESOURCES" in plant.prepare(ref).error
    assert keys
    check_foreign(plant.site, keys)
    assert not plant.unprepare(ref).error
    check_settled(plant.site, {}, keys)


@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_in_the_place_of_a_slice_lost_with_a_reboot_stays_and_the_place_is_kept(
    plant: Plant,
    compute: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    ref = plant.site.claim("old", [DEVICE])
    assert not plant.prepare(ref).error
    plant.site.machine.reboot()
    keys = foreign(plant.site, compute=compute)
    again = Plant(plant.site, plant.recorder)
    again.start()
    for _ in range(2):
        assert "did not make" in again.prepare(ref).error
        check_foreign(plant.site, keys)
    plant.site.machine.destroy_slice(0, plant.site.machine.gpu(0).gpu_instances[0].id)
    other = plant.site.claim("other", [DEVICE])
    assert str(ref.uid) in again.prepare(other).error, "the place is kept"
    assert not again.prepare(ref).error
    check_settled(plant.site, {ref: (DEVICE,)})
