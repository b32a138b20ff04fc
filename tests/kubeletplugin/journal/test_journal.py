"""The journal on disk: durable, checked, and never overwritten when it cannot be read."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdi.files import write_durably
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import HostError
from kubeletplugin.journal import journal as module
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal, previous
from tests.helpers.waiting import PATIENCE

SHARE = "gpu-0-mig-1g5gb-19-4-share"


def entry(uid: str = "u1", device: str = "gpu-0-mig-1g5gb-19-4", **changes: object) -> Entry:
    values: dict[str, object] = {
        "claim": ClaimRef("ns", f"claim-{uid}", uid),
        "device": device,
        "state": State.INTENT,
        "gpu": "GPU-1",
        "boot_id": "boot-1",
        "pool": "node",
        "requests": ("r0",),
        "profile_id": 19,
        "profile": "1g.5gb",
        "placement": Placement(4, 1),
    }
    return Entry(**(values | changes))  # type: ignore[arg-type]


def test_entries_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "state/journal.json"
    made = entry(gi_id=0, ci_id=0, mig_uuid="MIG-1", state=State.PREPARED, total=2)
    whole = entry("u2", "gpu-1", profile_id=None, profile="", placement=None)
    Journal(path).put(made, whole)
    again = Journal(path)
    assert again.entries() == (made, whole)
    assert again.of_claim("u2") == (whole,)
    assert again.of_gpu("GPU-1") == (made, whole)


def test_the_generation_before_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    journal = Journal(path)
    journal.put(entry("u1"))
    journal.put(entry("u2"))
    assert [e.claim.uid for e in Journal(previous(path)).entries()] == ["u1"]


def test_steps_are_noted_without_waiting_for_the_disk_and_the_last_durable_generation_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.json"
    synced: list[int] = []
    sync = os.fsync
    journal = Journal(path)
    journal.put(entry("u1"))

    def look(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    journal.note(entry("u2"))
    journal.note(entry("u2").at(State.GI_CREATED, gi_id=7))
    assert synced == []
    assert [e.claim.uid for e in Journal(path).entries()] == ["u1", "u2"]
    path.write_bytes(b"")  # what a file system may make of them when the power fails
    again = Journal(path)
    assert ([e.claim.uid for e in again.entries()], again.rebuild) == (["u1"], True)
    again.note(entry("u3"))
    again.put(entry("u4"))
    assert len(synced) == 3, "the one set aside, the file, its name"
    assert [e.claim.uid for e in Journal(path).entries()] == ["u1", "u3", "u4"]


def test_what_a_lost_journal_hides_is_known_until_it_was_found_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    Journal(path).rebuilt()
    assert (Journal(path).rebuild, Journal(path).unadopted) == (False, True)
    Journal(path).adopted()
    assert (Journal(path).rebuild, Journal(path).unadopted) == (False, False)
    path.write_bytes(b"")
    assert Journal(path).unadopted


@pytest.mark.parametrize("cut", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_journal_is_set_aside_and_its_predecessor_is_used(
    tmp_path: Path, cut: float
) -> None:
    path = tmp_path / "journal.json"
    journal = Journal(path)
    journal.put(entry("u1"))
    journal.put(entry("u2"))
    data = path.read_bytes()[: int(path.stat().st_size * cut)]
    path.write_bytes(data)
    again = Journal(path)
    assert [e.claim.uid for e in again.entries()] == ["u1"]
    assert path.with_name("journal.json.corrupt").read_bytes() == data
    again.put(entry("u3"))
    assert [e.claim.uid for e in Journal(path).entries()] == ["u1", "u3"]


@pytest.mark.parametrize(
    ("field", "value"), [("version", 99), ("checksum", "sha256:0"), ("generation", 7)]
)
def test_a_journal_that_was_tampered_with_or_is_of_another_version_is_not_used(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "journal.json"
    Journal(path).put(entry())
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record | {field: value}))
    assert Journal(path).entries() == ()
    assert path.with_name("journal.json.corrupt").exists()


def test_a_write_that_fails_leaves_the_entries_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "d" / "journal.json")
    journal.put(entry())
    (tmp_path / "d" / "journal.json.link").mkdir()
    with pytest.raises(HostError, match=r"cannot write the journal .*/d/journal.json"):
        journal.put(entry("u2"))
    assert [e.claim.uid for e in journal.entries()] == ["u1"]


def test_a_listener_hears_of_every_change_that_is_no_step(tmp_path: Path) -> None:
    heard: list[int] = []
    journal = Journal(tmp_path / "journal.json", on_change=lambda: heard.append(1))
    journal.put(entry())
    journal.note(entry().at(State.GI_CREATED, gi_id=7))
    journal.remove(entry())
    assert len(heard) == 2, "steps are of no interest to others"


def test_who_reads_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.json")
    journal.put(entry())
    under_way, go_on = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes, *, mode: int) -> None:
        under_way.set()
        assert go_on.wait(PATIENCE)
        write_durably(path, data, mode=mode)

    monkeypatch.setattr(module, "write_durably", slow)
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(journal.put, entry("u2"))
        assert under_way.wait(PATIENCE)

        def read() -> tuple[object, ...]:
            return (journal.entries(), journal.get(entry("u2")), journal.rebuild, journal.unadopted)

        reading = threads.submit(read)
        try:
            assert reading.result(PATIENCE / 4) == ((entry(),), None, True, True)
        finally:
            go_on.set()
        writing.result(PATIENCE)
    assert journal.entries() == (entry(), entry("u2"))
