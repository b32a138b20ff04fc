"""The journal on disk: durable, checked, and never overwritten when it cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import HostError
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.journal.journal import Journal


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


def test_a_write_that_fails_leaves_the_entries_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "d" / "journal.json")
    journal.put(entry())
    (tmp_path / "d" / "journal.json.link").mkdir()
    with pytest.raises(HostError, match=r"cannot write the journal .*/d/journal.json"):
        journal.put(entry("u2"))
    assert [e.claim.uid for e in journal.entries()] == ["u1"]
