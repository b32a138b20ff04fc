"""Records of a journal with a right checksum that say what this version cannot use."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.failures.helpers.agreement import check_claim, check_foreign
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import StepRecorder, hooked
from tests.kubeletplugin.helpers.lostjournals import seal

ODD = ("gpu-0-mig-1g5gb-19-4",)
WELL = ("gpu-1-mig-3g20gb-9-4",)
NEW = ("gpu-1-mig-1g5gb-19-0",)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**31, 2**63, 2**80, 10**400, 0.5, float("inf"), float("nan")),
    *("", " ", "\0", "../..", "\ud800", "x" * 100_000, "gpu-0-mig-2g10gb-14-0", "tpu-9", "gpu-00"),
    *([], [0, 0], ["a", "b"], [[]], {}, {"a": []}, {"start": 4, "size": -1}),
    *({"start": 2**40, "size": 1}, {"namespace": "", "name": "n", "uid": "u"}),
)
"""What a field may hold in a file of another version, or one that somebody has edited."""
ROUNDS = 3000 if os.environ.get("MIG_SOAK") else 60


class Bench:
    """A node with two prepared claims, one of whose records is changed, and a foreign slice."""

    def __init__(self, folder: Path) -> None:
        self.site = Site.create(folder / "n")
        self.site.machine.create_slice(0, "1g.5gb", start=6)
        self.foreign = {g.key for g in self.site.machine.gpu(0).gpu_instances}
        self.recorder = StepRecorder()
        with hooked(self.recorder):
            plant = self.start()
            self.odd, self.well = self.site.claim("odd", ODD), self.site.claim("well", WELL)
            for ref in (self.odd, self.well):
                assert not plant.prepare(ref).error
        self.journal = self.site.roots.state / "journal.json"
        self.record = json.loads(self.journal.read_bytes())
        self.kept = folder / "kept"
        self.site.save(self.kept)

    def start(self) -> Plant:
        """A new process."""
        plant = Plant(self.site, self.recorder)
        plant.start()
        return plant

    def change(self, **changes: object) -> None:
        """The odd claim's record says something else, and the checksum is right."""
        self.site.restore(self.kept)
        entries = [
            e | (changes if e["claim"]["uid"] == self.odd.uid else {})
            for e in self.record["entries"]
        ]
        seal(self.journal, self.record | {"entries": entries})

    def lives(self) -> None:
        """The program starts, serves everybody else, and leaves alone what is another's."""
        plant = self.start()
        plant.tend()
        plant.look()
        plant.publish()
        assert plant.inventory() is not None
        check_claim(self.site, self.well, WELL)
        new = self.site.claim(f"new-{random.random()}", NEW)
        outcome = plant.prepare(new)
        assert not outcome.error, outcome.error
        plant.prepare(self.odd)
        plant.unprepare(self.odd)
        plant.tend()
        assert not plant.unprepare(new).error
        assert not plant.unprepare(self.well).error
        check_foreign(self.site, self.foreign)


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    logging.disable(logging.CRITICAL)
    bench = Bench(folder)
    with hooked(bench.recorder):
        yield bench


def test_a_record_that_names_a_device_of_no_known_kind_is_quarantined_alone(bench: Bench) -> None:
    bench.change(device="gpu-0-nvlink-3")
    plant = bench.start()
    assert "CheckpointCorrupted" in dict(plant.events)
    check_claim(bench.site, bench.well, WELL)
    error = plant.prepare(bench.odd).error
    assert "records in the journal cannot be used" in error
    assert "gpu-0-nvlink-3" in error
    other = bench.site.claim("other", ODD)
    assert bench.odd.uid in plant.prepare(other).error, "its placement is unavailable"
    assert not plant.unprepare(bench.odd).error
    assert not plant.prepare(other).error


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": {"start": -3, "size": 2}},
        {"placement": {"start": 4, "size": 10**9}},
        {"placement": None},
        {"gi_id": -1},
        {"gi_id": 2**40},
        {"gpu": ""},
        {"claim": {"namespace": "ns", "name": "..", "uid": "u"}},
        {"claim": {"namespace": "ns", "name": "n", "uid": "../../x"}},
        {"device": "gpu-0-mig-1g5gb-19-0"},
    ],
    ids=str,
)
def test_of_a_record_with_a_value_that_no_reader_can_stand_nothing_else_is_lost(
    bench: Bench, changes: dict[str, object]
) -> None:
    bench.change(**changes)
    plant = bench.start()
    assert "CheckpointCorrupted" in dict(plant.events)
    bench.lives()


@pytest.mark.timeout(3600)
def test_whatever_a_record_says_the_program_starts_and_serves_the_others(bench: Bench) -> None:
    fields = list(bench.record["entries"][0])
    every = list(itertools.product(fields, VALUES))
    rng = random.Random(int(os.environ.get("MIG_SEED", "5")))
    # What does not differ in kind for a field is tried in a soak.
    for field, value in rng.sample(every, min(ROUNDS, len(every))):
        bench.change(**{field: value})
        try:
            bench.lives()
        except BaseException as error:
            error.add_note(f"{field} = {str(value)[:80]!r}")
            raise


def test_a_generation_that_is_no_number_is_refused_with_its_file(bench: Bench) -> None:
    bench.site.restore(bench.kept)
    seal(bench.journal, bench.record | {"generation": float("inf")})
    plant = bench.start()
    assert "CheckpointCorrupted" in dict(plant.events)
    for ref, devices in ((bench.odd, ODD), (bench.well, WELL)):
        assert [d.device for d in plant.prepare(ref).devices] == list(devices)


def test_two_gpus_never_get_one_name_from_records(bench: Bench) -> None:
    first, second = (g.uuid for g in bench.site.machine.state().gpus)
    bench.change(device="gpu-1-mig-1g5gb-19-4")
    (bench.site.roots.state / "gpus.json").unlink()
    plant = bench.start()
    numbers = {u.uuid: u.known.number for u in plant.daemon.gpus.hardware.units()}
    assert numbers.keys() == {first, second}
    assert len(set(numbers.values())) == 2
