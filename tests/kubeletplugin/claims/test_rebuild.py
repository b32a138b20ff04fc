"""A journal that is lost, damaged or of another version: the plugin goes on and finds out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import ForbiddenError
from dra.kube.http import Keep, Page, whole
from kubeletplugin.claims import rebuild
from kubeletplugin.journal.entries import State
from kubeletplugin.journal.journal import Journal
from sim.nvml.faults import Fault
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.lostjournals import SLICE, lose_journal, prepared, reserve
from tests.kubeletplugin.helpers.reported import events
from tests.kubeletplugin.helpers.rig import DRIVER, Rig
from tests.kubeletplugin.journal.test_journal import entry


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


def test_a_change_from_an_entry_that_is_no_longer_so_is_not_made(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.json")
    old = entry()
    journal.put(old.at(State.PREPARED))
    assert not journal.alter(old, old.at(State.LOST))
    assert journal.alter(old.at(State.PREPARED), old.at(State.LOST))
    assert [e.state for e in journal.entries()] == [State.LOST]


SECOND = "gpu-1-mig-2g10gb-14-0"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that could not be read are listed again at once."""
    monkeypatch.setattr(rebuild, "LIST_PAUSE_SECONDS", 0.0)


def spec_of(ref: ClaimRef) -> str:
    return f"k8s.{DRIVER}-claim_{ref.uid}.yaml"


def tend(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.janitor.tend(everything=True)


def lost(rig: Rig, *, down: bool = False) -> None:
    """A new process without a journal; with ``down`` the API server is silent."""
    rig.stop()
    lose_journal(rig)
    rig.http.down = down
    rig.start(ready=False)
    wait_for("readiness", lambda: rig.is_ready)


def unread_gpu(rig: Rig) -> None:
    """The second GPU does not say what MIG mode it is in: its description fails."""
    rig.machine.inject(
        Fault(
            id="passing",
            function="nvmlDeviceGetGpuInstanceProfileInfo*",
            action="return",
            code=999,
            gpu=rig.machine.gpu(1).uuid,
            times=0,
        )
    )


@pytest.mark.every_variant
def test_a_gpu_that_fails_at_the_start_keeps_its_claims_of_a_lost_journal(rig: Rig) -> None:
    first, second = prepared(rig), prepared(rig, SECOND)
    rig.stop()
    unread_gpu(rig)
    lost(rig)
    assert [e.claim for e in rig.journal()] == [first]
    assert rig.specs() == sorted(map(spec_of, (first, second))), "the pod is running"
    rig.machine.clear_faults()

    def whole() -> bool:
        assert rig.daemon is not None
        rig.poll()
        tend(rig)
        return {e.claim for e in rig.journal()} == {first, second}

    wait_for("the second GPU's claim", whole)
    assert all(e.state is State.PREPARED for e in rig.journal())
    assert rig.unprepare(second) == ""
    assert rig.slices() == [(0, "1g.5gb", 4, True)]
    assert rig.specs() == [spec_of(first)]


@pytest.mark.usefixtures("impatient")
def test_with_a_silent_api_server_no_spec_is_swept_until_the_claims_were_read(rig: Rig) -> None:
    ref = prepared(rig)
    stray = rig.roots.cdi / f"k8s.{DRIVER}-claim_gone.yaml"
    stray.write_text("")
    lost(rig, down=True)
    tend(rig)
    assert rig.specs() == sorted([spec_of(ref), stray.name])
    rig.http.down = False

    def swept() -> bool:
        tend(rig)
        return rig.specs() == [spec_of(ref)]

    wait_for("the sweep", swept)
    assert [e.claim for e in rig.journal()] == [ref]


def test_an_unprepare_of_what_a_lost_journal_may_hide_waits_for_an_answer(rig: Rig) -> None:
    ref = prepared(rig)
    lost(rig, down=True)
    assert "not found again yet" in rig.unprepare(ref)
    assert rig.specs() == [spec_of(ref)]
    never = ClaimRef("default", "never-here", "00000000-0000-0000-0000-000000000000")
    assert rig.unprepare(never) == ""
    rig.http.down = False
    assert rig.unprepare(ref) == ""
    assert rig.clean()


def test_what_appears_while_another_gpu_is_waited_for_is_not_adopted(rig: Rig) -> None:
    ref = prepared(rig, SECOND)
    rig.stop()
    unread_gpu(rig)
    waiting = rig.claim(SLICE)
    reserve(rig, waiting)
    lost(rig)
    rig.machine.create_slice(0, "1g.5gb", start=4)
    tend(rig)
    assert "did not make" in rig.refused(waiting)
    later = rig.claim("gpu-0-mig-1g5gb-19-5")
    rig.machine.create_slice(0, "1g.5gb", start=5)
    reserve(rig, later)
    tend(rig)
    assert "did not make" in rig.refused(later), "it was allocated after the claims were read"
    assert rig.journal() == ()
    assert rig.specs() == [spec_of(ref)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("broken", [{"reservedFor": "x"}, {"allocation": {"devices": 5}}], ids=str)
def test_a_claim_that_cannot_be_read_counts_if_it_names_this_node(
    rig: Rig, broken: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = prepared(rig)
    items = rig.http.item

    def item(raw: msgspec.Raw, keep: Keep) -> Obj | None:
        read = whole(raw)
        if read["metadata"]["uid"] == ref.uid:
            read["status"] |= broken | {"was": dict(read["status"])}
        return items(msgspec.Raw(msgspec.json.encode(read)), keep)

    rig.stop()
    with monkeypatch.context() as patch:
        patch.setattr(rig.http, "item", item)
        lost(rig)
        tend(rig)
        assert rig.journal() == ()
        assert rig.specs() == [spec_of(ref)]
    tend(rig)
    assert [e.claim for e in rig.journal()] == [ref]


@pytest.mark.parametrize("silent", ["gpu", "api server"])
def test_claims_are_not_listed_again_and_again_while_something_does_not_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    refs = [prepared(rig, SECOND), prepared(rig)]
    rig.stop()
    lists: list[str] = []
    page = rig.http.page

    def counted(path: str, **more: Any) -> Page:
        if path.endswith("/resourceclaims") and not more["query"]["labelSelector"]:
            lists.append(more["query"].get("continue", ""))
            if silent == "api server":
                raise ForbiddenError("no lists for you")
        return page(path, **more)

    monkeypatch.setattr(rig.http, "page", counted)
    if silent == "gpu":
        unread_gpu(rig)
    lost(rig)
    for _ in range(10):
        tend(rig)
        rig.unprepare(refs[0])
        rig.prepare(refs[1])
    assert lists.count("") == 1
    assert refs[1] in {e.claim for e in rig.journal()}, "it was asked for by name"


def test_a_lost_journal_is_rebuilt_from_the_hardware_and_the_reserved_claims(rig: Rig) -> None:
    ref, idle = prepared(rig), prepared(rig, "gpu-1-mig-2g10gb-14-0", reserved=False)
    before = next(e for e in rig.journal() if e.claim == ref)
    hardware = rig.machine.snapshot()
    rig.stop()
    lose_journal(rig)
    rig.start()
    [found] = rig.journal()
    assert found == before.at(State.PREPARED)
    assert rig.machine.snapshot() == hardware
    assert rig.published_slices() == [
        ("gpu-0", "1g.5gb", 4, "prepared"),
        ("gpu-1", "2g.10gb", 0, "foreign"),
    ], idle
    wait_for("the event", lambda: "JournalRebuilt" in dict(events(rig, rig.node)))
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    assert rig.slices() == [(1, "2g.10gb", 0, True)]
