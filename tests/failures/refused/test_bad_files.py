"""Files that are damaged, in the way or refused: the process lives, and nothing is lost."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra.gpu.inventory import ClaimRef
from tests.failures.helpers.agreement import check_claim, check_settled, entries, own_instances
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import DRIVER, Site
from tests.failures.helpers.steps import Step, StepRecorder, full_disk, hooked

CLAIMS = {
    "one": ("gpu-0-mig-1g5gb-19-4",),
    "two": ("gpu-0-mig-2g10gb-14-0", "gpu-1-mig-3g20gb-9-4"),
}
NEW = ("gpu-1-mig-1g5gb-19-0",)
MOST_OFFSETS = 4000 if os.environ.get("MIG_SOAK") else 8


class Bench:
    """A node with two claims prepared and a foreign slice; the program is started by the test."""

    def __init__(self, folder: Path) -> None:
        logging.disable(logging.CRITICAL)
        self.site = Site.create(folder / "n")
        self.site.machine.create_slice(0, "1g.5gb", start=6)
        self.foreign = {g.key for g in self.site.machine.gpu(0).gpu_instances}
        self.recorder = StepRecorder()
        self.claims: dict[ClaimRef, tuple[str, ...]] = {}
        with hooked(self.recorder):
            plant = self.start()
            for name, devices in CLAIMS.items():
                ref = self.site.claim(name, devices)
                assert not plant.prepare(ref).error
                self.claims[ref] = devices
        self.journal = self.site.roots.state / "journal.json"
        self.before = self.hardware()

    def start(self) -> Plant:
        """A new process."""
        plant = Plant(self.site, self.recorder)
        plant.start()
        return plant

    def hardware(self) -> object:
        """All instances."""
        return [g.gpu_instances for g in self.site.machine.state().gpus]

    def agrees(self) -> None:
        """Hardware is as it was, and everything else says so."""
        assert self.hardware() == self.before
        check_settled(self.site, self.claims, self.foreign)

    def serves(self, plant: Plant) -> None:
        """Another claim can come and go, and what is there stays."""
        ref = self.site.claim(f"new-{random.random()}", NEW)
        outcome = plant.prepare(ref)
        assert not outcome.error, outcome.error
        check_claim(self.site, ref, NEW)
        assert not plant.unprepare(ref).error
        self.agrees()


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    with hooked(bench.recorder):
        yield bench


def offsets(length: int) -> list[int]:
    """All of them; where there are too many, the ends and always the same one of each part."""
    if length <= MOST_OFFSETS:
        return list(range(length))
    parts = MOST_OFFSETS - 2
    bounds = [1 + (length - 2) * part // parts for part in range(parts + 1)]
    chance = random.Random(1)
    inner = [chance.randrange(start, end) for start, end in itertools.pairwise(bounds)]
    return [0, *inner, length - 1]


def truncated(data: bytes, at: int) -> bytes:
    return data[:at]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("damage", [truncated, flipped])
def test_a_journal_that_is_damaged_anywhere_loses_nothing(
    bench: Bench, folder: Path, damage: Callable[[bytes, int], bytes]
) -> None:
    data = bench.journal.read_bytes()
    bench.site.save(folder / "kept")
    for at in offsets(len(data)):
        bench.site.restore(folder / "kept")
        bench.journal.write_bytes(damage(data, at))
        plant = bench.start()
        plant.tend()
        bench.agrees()
        for ref, devices in bench.claims.items():
            assert [d.device for d in plant.prepare(ref).devices] == list(devices), f"byte {at}"
        bench.agrees()


def empty(journal: Path) -> None:
    journal.write_bytes(b"")


def directory(journal: Path) -> None:
    journal.unlink()
    journal.mkdir()
    (journal / "something").write_text("")


def newer(journal: Path) -> None:
    journal.write_text(json.dumps({**json.loads(journal.read_bytes()), "version": 99}))


def noise(journal: Path) -> None:
    journal.write_bytes(os.urandom(5000))


def nested(journal: Path) -> None:
    journal.write_bytes(b"[" * 100_000)


def wrong_types(journal: Path) -> None:
    journal.write_text(json.dumps({"version": [], "entries": 5, "generation": {}}))


def gone(journal: Path) -> None:
    journal.unlink()


DAMAGES = (empty, directory, newer, noise, nested, wrong_types, gone)


@pytest.mark.parametrize(
    ("damage", "both"), [(newer, False), (directory, False), *((d, True) for d in DAMAGES)]
)
def test_a_journal_that_is_no_journal_is_rebuilt_from_hardware_and_claims(
    bench: Bench, damage: Callable[[Path], None], *, both: bool
) -> None:
    damage(bench.journal)
    if both:
        damage(bench.journal.with_name("journal.json.previous"))
    plant = bench.start()
    plant.tend()
    bench.agrees()
    bench.serves(plant)
    for ref in list(bench.claims):
        assert not plant.unprepare(ref).error
    check_settled(bench.site, {}, bench.foreign)


def test_a_cdi_directory_that_refuses_undoes_the_slice_and_names_the_path(bench: Bench) -> None:
    plant = bench.start()
    cdi = bench.site.roots.cdi

    def refuse(step: Step) -> OSError | None:
        if step.kind == "file" and Path(step.path).is_relative_to(cdi):
            return OSError(errno.EACCES, os.strerror(errno.EACCES), step.path)
        return None

    bench.recorder.refuse = refuse
    error = plant.prepare(bench.site.claim("new", NEW)).error
    assert "Permission denied" in error
    assert str(cdi) in error
    assert bench.hardware() == bench.before
    for ref, devices in bench.claims.items():
        check_claim(bench.site, ref, devices)
    bench.recorder.refuse = full_disk()
    plant.tend()
    bench.serves(plant)


def test_a_spec_that_is_a_symbolic_link_is_replaced_and_never_followed(
    bench: Bench, folder: Path
) -> None:
    outside = folder / "precious"
    outside.write_text("precious")
    [ref, *_] = bench.claims
    spec = bench.site.roots.cdi / f"k8s.{DRIVER}-claim_{ref.uid}.yaml"
    for target in (outside, folder / "nowhere", spec.parent, spec):
        spec.unlink()
        spec.symlink_to(target)
        plant = bench.start()
        assert not plant.prepare(ref).error
        assert not spec.is_symlink(), f"the link to {target} was kept"
        bench.agrees()
    same = folder / "same"
    same.write_bytes(spec.read_bytes())
    for target in (same, outside):
        spec.unlink()
        spec.symlink_to(target)
        assert not plant.prepare(ref).error
        assert not spec.is_symlink(), "a link is kept if what it leads to says the same"
    spec.unlink()
    spec.symlink_to(outside)
    assert not plant.unprepare(ref).error
    assert not spec.is_symlink()
    assert outside.read_text() == "precious"
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("name", ["journal.json", "journal.json.previous", "gpus.json"])
def test_a_file_of_the_state_that_is_a_symbolic_link_is_never_written_through(
    bench: Bench, folder: Path, name: str
) -> None:
    outside = folder / "precious"
    outside.write_text("precious")
    path = bench.site.roots.state / name
    path.unlink()
    path.symlink_to(outside)
    plant = bench.start()
    bench.serves(plant)
    assert outside.read_text() == "precious"


def test_nothing_is_lost_while_the_disk_is_full_and_all_is_well_after(bench: Bench) -> None:
    plant = bench.start()
    roots = bench.site.roots
    bench.recorder.refuse = full_disk(roots.state, roots.cdi)
    error = plant.prepare(bench.site.claim("new", NEW)).error
    assert "No space left on device" in error
    inventory = plant.inventory()
    assert inventory is not None
    assert not inventory.ready
    assert f"{roots.state}/journal.json: No space left on device" in inventory.message
    plant.tend()
    told = [text for reason, text in plant.events if reason == "JournalUnwritable"]
    assert len(told) == 1, "once, however often it is tried"
    assert "free space there" in told[0]
    bench.recorder.refuse = full_disk()
    plant.tend()
    inventory = plant.inventory()
    assert inventory is not None
    assert (inventory.ready, inventory.message) == (True, "")
    assert [r for r, _ in plant.events].count("JournalWritable") == 1
    bench.recorder.refuse = full_disk(roots.state, roots.cdi)
    [ref, *_] = bench.claims
    plant.unprepare(ref)
    assert len(own_instances(bench.site, bench.foreign)) >= 2
    bench.recorder.refuse = full_disk()
    assert not plant.unprepare(ref).error
    del bench.claims[ref]
    plant.tend()
    check_settled(bench.site, bench.claims, bench.foreign)
    assert len(entries(bench.site)) == 2
