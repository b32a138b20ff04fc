"""A journal that is lost, damaged, or of another version: the plugin goes on and finds out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import VERSION, Journal, previous
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import (
    SLICE,
    edit,
    lose_journal,
    prepared,
    reserve,
)
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import Rig
from tests.kubeletplugin.journal.test_journal import entry


def test_a_lost_journal_is_rebuilt_from_the_hardware_and_the_reserved_claims(rig: Rig) -> None:
    ref, idle = prepared(rig), prepared(rig, "gpu-1-mig-2g10gb-14-0", reserved=False)
    before = next(e for e in rig.journal() if e.claim == ref)
    hardware = rig.machine.snapshot()
    rig.stop()
    lose_journal(rig)
    rig.start()
    [found] = rig.journal()
    assert found == before.at(State.PREPARED, files=())
    assert rig.machine.snapshot() == hardware
    assert rig.published_slices() == [
        ("gpu-0", "1g.5gb", 4, "prepared"),
        ("gpu-1", "2g.10gb", 0, "foreign"),
    ], idle
    wait_for("the event", lambda: "JournalRebuilt" in dict(events(rig, rig.node)))
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    assert rig.slices() == [(1, "2g.10gb", 0, True)]


@pytest.mark.parametrize(
    "changes",
    [{"state": "hibernating"}, {"total": "two"}, {"device": "tpu-9"}, {"placement": {"start": -3}}],
    ids=str,
)
def test_a_journal_with_a_record_that_cannot_be_understood_is_set_aside_and_rebuilt(
    rig: Rig, changes: dict[str, object]
) -> None:
    ref = prepared(rig)
    rig.stop()
    path = rig.roots.state / "journal.json"
    previous(path).unlink()
    edit(path, lambda record: record["entries"][0].update(changes))
    rig.start()
    assert path.with_name("journal.json.corrupt").exists()
    wait_for("the event", lambda: "CheckpointCorrupted" in dict(events(rig, rig.node)))
    assert [(e.claim, e.state) for e in rig.journal()] == [(ref, State.PREPARED)]
    assert rig.unprepare(ref) == ""
    assert rig.slices() == []


def test_a_lost_journal_is_rebuilt_once_the_api_server_answers(rig: Rig) -> None:
    ref = prepared(rig)
    rig.stop()
    lose_journal(rig)
    rig.http.down = True
    rig.start(ready=False)
    wait_for("readiness", lambda: rig.daemon and rig.daemon.common.readiness.is_ready)
    assert rig.journal() == ()
    rig.http.down = False
    assert rig.prepared(ref)
    assert [e.claim for e in rig.journal()] == [ref]
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


def test_what_the_generation_before_did_not_know_is_found_again(rig: Rig) -> None:
    first, second = prepared(rig), prepared(rig, "gpu-0-mig-1g5gb-19-0")
    rig.stop()
    path = rig.roots.state / "journal.json"
    journal = Journal(path)
    old = [e for e in journal.entries() if e.claim == first]
    Journal(previous(path)).put(*old)
    edit(previous(path), lambda r: r.update(entries=r["entries"][:1], rebuild=False))
    path.write_text("{ broken")
    rig.start()
    assert {e.claim for e in rig.journal()} == {first, second}
    wait_for(
        "events",
        lambda: (
            {"CheckpointCorrupted", "JournalRebuilt"}
            <= {reason for reason, _ in events(rig, rig.node)}
        ),
    )


def test_a_foreign_instance_is_not_adopted_where_no_claim_was_given_its_place(rig: Rig) -> None:
    rig.stop()
    rig.machine.create_slice(0, "1g.5gb", start=4)
    claim = rig.claim("gpu-0-mig-1g5gb-19-0")
    reserve(rig, claim)
    rig.start()
    assert rig.journal() == ()
    assert rig.mutations() == []


def test_an_instance_made_where_a_claim_waits_for_its_own_is_not_adopted_at_the_next_start(
    rig: Rig,
) -> None:
    claim = rig.claim(SLICE)
    reserve(rig, claim)
    rig.machine.create_slice(0, "1g.5gb", start=4)
    rig.restart()
    assert rig.journal() == ()
    assert "did not make" in rig.refused(claim)
    assert rig.unprepare(claim) == ""
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


@pytest.mark.parametrize("version", [0, VERSION + 1, "2", None])
def test_another_version_is_refused_as_a_whole(tmp_path: Path, version: object) -> None:
    path = tmp_path / "journal.json"
    Journal(path).put(entry())
    edit(path, lambda record: record.update(version=version))
    journal = Journal(path)
    assert journal.entries() == ()
    assert journal.rebuild
    assert "version" in journal.problems[0]


def test_a_change_from_an_entry_that_is_no_longer_so_is_not_made(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    old = entry()
    journal.put(old.at(State.PREPARED))
    assert not journal.alter(old, old.at(State.LOST))
    assert journal.alter(old.at(State.PREPARED), old.at(State.LOST))
    assert [e.state for e in journal.entries()] == [State.LOST]


def test_one_entry_takes_the_place_of_another_in_one_write(tmp_path: Path) -> None:
    writes: list[int] = []
    journal = Journal(tmp_path / "journal.json", on_change=lambda: writes.append(1))
    journal.put(entry("u1"))
    journal.exchange(entry("u1"), entry("u2"))
    assert [e.claim.uid for e in Journal(tmp_path / "journal.json").entries()] == ["u2"]
    assert len(writes) == 2
