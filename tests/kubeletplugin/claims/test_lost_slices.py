"""Prepared slices that are gone from the hardware: found, told, and made again."""

from __future__ import annotations

import pytest

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.errors import BusyError
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.telemetry.observer import Action
from tests.kubeletplugin.claims.janitorbench import UID, Bench
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE

# -- prepared slices and the hardware

HERE_AND_GONE = pytest.mark.parametrize("there", [True, False], ids=["there", "gone"])


@HERE_AND_GONE
@pytest.mark.parametrize("state", sorted(HELD))
def test_a_held_slice_is_prepared_while_it_is_there_and_else_lost(
    bench: Bench,
    there: bool,  # noqa: FBT001 - a parameter of the test
    state: State,
) -> None:
    entry = bench.made("a", state, note="why")
    bench.specs.files = {UID: ["x"]}
    if not there:
        bench.machine.destroy_slice(0, entry.gi_id or 0)
    now = State.PREPARED if there else State.LOST
    assert bench.janitor.check(UID) is (now is not state)
    assert bench.states() == [now]
    assert bench.specs.files == ({UID: [entry.device]} if there else {})
    if now is state:
        assert (bench.journal.entries(), bench.acts.seen) == ((entry,), [])
        return
    assert bench.hardware.looked_at == [bench.unit.uuid]
    assert bench.acts.seen == [Action.FOUND if there else Action.LOST]
    assert bench.events.reasons() == ([] if there else [("ResourceClaim", "SliceLost", True)])
    (changed,) = bench.journal.entries()
    assert (changed.note, changed.wiped) == (
        "" if there else "the slice is gone from the hardware",
        False,
    )


@pytest.mark.parametrize("state", [s for s in State if s not in HELD])
def test_what_is_not_held_is_not_compared(bench: Bench, state: State) -> None:
    entry = bench.made("a", state)
    bench.machine.destroy_slice(0, entry.gi_id or 0)
    assert not bench.janitor.check(UID)
    assert bench.journal.entries() == (entry,)


@pytest.mark.parametrize("wiped", [False, True])
def test_what_a_reset_took_is_told_from_what_somebody_took(
    bench: Bench,
    wiped: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.machine.destroy_slice(0, entry.gi_id or 0)
    bench.unit.come_back([entry.key] if wiped else [])
    assert bench.janitor.check(UID)
    assert bench.journal.entries()[0].wiped is wiped
    assert ("reset" in bench.events.seen[0][2]) is wiped
    assert ("somebody destroyed it" in bench.events.seen[0][2]) is not wiped
    assert "made again" not in bench.events.seen[0][2], "nobody knows yet whether it will be"
    assert bench.unit.known.wiped == frozenset()


CANNOT_BE_TOLD = ["GPU away", "GPU busy", "GPU that does not answer"]


@pytest.mark.parametrize("case", CANNOT_BE_TOLD)
def test_what_cannot_be_looked_at_is_neither_there_nor_lost(
    bench: Bench, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = bench.made("a", State.PREPARED, boot_id="before")
    unseen = bench.made("a", State.LOST, ELSEWHERE)
    if case == "GPU away":
        bench.hardware.found = {}
    elif case == "GPU busy":
        monkeypatch.setattr(bench.unit.lock, "enter", lambda _: False)
    else:
        bench.keep("nvmlDeviceGetGpuInstanceById")
    assert not bench.janitor.check(UID)
    assert bench.journal.entries() == (gone, unseen)
    if case == "GPU that does not answer":
        assert bench.unit.lock.try_enter(), "the GPU's lock is free again"


@pytest.mark.parametrize("boot", ["boot", "before"])
def test_a_whole_gpu_outlives_a_boot(bench: Bench, boot: str) -> None:
    entry = bench.entry("a", None, state=State.PREPARED, profile_id=None, boot_id=boot)
    bench.journal.put(entry)
    assert not bench.janitor.check(UID)
    assert bench.journal.entries() == (entry,)


def test_after_a_boot_a_slice_is_lost_though_the_gpu_is_away(bench: Bench) -> None:
    bench.journal.put(bench.entry("a", state=State.PREPARED, boot_id="before"))
    bench.hardware.found = {}
    assert bench.janitor.check(UID)
    assert bench.states() == [State.LOST]


def test_a_claim_that_lost_one_of_two_has_no_spec(bench: Bench) -> None:
    bench.made("a", State.PREPARED, total=2)
    gone = bench.made("a", State.PREPARED, ELSEWHERE, total=2)
    bench.machine.destroy_slice(0, gone.gi_id or 0)
    bench.specs.files = {UID: ["x", "y"]}
    assert bench.janitor.check(UID)
    assert (bench.states(), bench.specs.files) == ([State.PREPARED, State.LOST], {})


def test_a_claim_whose_other_device_is_not_prepared_keeps_its_spec_as_it_is(bench: Bench) -> None:
    bench.made("a", State.PREPARED, total=2)
    bench.specs.files = {UID: ["x", "y"]}
    assert not bench.janitor.check(UID)
    assert bench.specs.files == {UID: ["x", "y"]}


@HERE_AND_GONE
def test_what_the_disk_does_not_take_is_compared_again_later(
    bench: Bench,
    there: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    entry = bench.made("a", State.LOST if there else State.PREPARED)
    if not there:
        bench.machine.destroy_slice(0, entry.gi_id or 0)
    bench.fill_disk()
    assert not bench.janitor.check(UID)
    assert (bench.acts.seen, bench.events.seen) == ([], [])
    bench.empty_disk()
    assert bench.janitor.check(UID)


def test_one_that_changed_meanwhile_takes_nothing_back_of_what_did(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [bench.made("a", State.PREPARED, Placement(n, 1)) for n in (0, 1)]
    for entry in gone:
        bench.machine.destroy_slice(0, entry.gi_id or 0)
    later = gone[1].at(State.LEFTOVER)
    monkeypatch.setattr(bench.hardware, "look", lambda _: bench.journal.put(later))
    assert bench.janitor.check(UID)
    assert bench.states() == [State.LOST, State.LEFTOVER]
    assert bench.acts.seen == [Action.LOST]


# -- made again


@pytest.mark.parametrize("fate", ClaimFate)
@pytest.mark.parametrize("wiped", [(True, True), (True, False), (False, False)])
def test_what_a_reset_took_is_made_again_for_a_claim_that_is_here(
    bench: Bench, fate: ClaimFate, wiped: tuple[bool, bool]
) -> None:
    for each, place in zip(wiped, (4, 0), strict=True):
        place_of = Placement(place, 1)
        bench.journal.put(bench.entry("a", place_of, state=State.LOST, wiped=each))
    bench.journal.put(bench.entry("a", Placement(1, 1), state=State.PREPARED))
    bench.fate = fate
    made = bench.janitor.restore(ClaimRef("default", "a", UID))
    assert made is (all(wiped) and fate is ClaimFate.HERE)
    assert bench.finished == (["a"] if made else [])
    assert bench.acts.seen == ([Action.RESTORED] if made else [])
    assert bench.events.reasons() == ([("ResourceClaim", "SliceRestored", False)] if made else [])
    if made:
        names = "gpu-0-mig-1g5gb-19-4, gpu-0-mig-1g5gb-19-0; containers"
        assert names in bench.events.seen[0][2]


def test_where_nothing_is_lost_nothing_is_made(bench: Bench) -> None:
    bench.made("a", State.PREPARED)
    assert not bench.janitor.restore(ClaimRef("default", "a", UID))
    assert bench.finished == []


def test_why_it_cannot_be_made_again_is_told_once_and_what_changed_meanwhile_is_left(
    bench: Bench,
) -> None:
    entry = bench.entry("a", state=State.LOST, wiped=True)
    bench.journal.put(entry)
    bench.refusal = BusyError("it is held")
    ref = ClaimRef("default", "a", UID)
    assert not bench.janitor.restore(ref)
    (noted,) = bench.journal.entries()
    assert noted == entry.at(State.LOST, note=noted.note, wiped=True)
    why = "the slice is gone from the hardware, and cannot be made again: it is held"
    assert noted.note == why
    told = (
        "gpu-0-mig-1g5gb-19-4 cannot be made again: it is held; it is tried again while the pod "
        "is there"
    )
    events = [("ResourceClaim", "SliceLost", told, True)]
    assert (bench.acts.seen, bench.events.seen) == ([], events)
    bench.fill_disk()
    assert not bench.janitor.restore(ref), "the same is neither written nor told again"
    assert bench.events.seen == events
    assert not bench.journal.failure
    bench.refusal = BusyError("it is held on")
    assert not bench.janitor.restore(ref), "a full disk is no reason to stop"
    assert bench.journal.failure


def test_what_changed_while_it_was_tried_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = bench.entry("a", state=State.LOST, wiped=True)
    bench.journal.put(entry)
    later = entry.at(State.LEFTOVER)

    def finish(_: ClaimRef) -> None:
        bench.journal.put(later)
        raise BusyError("it is held")

    bench.on_finish = finish
    assert not bench.janitor.restore(ClaimRef("default", "a", UID))
    assert bench.journal.entries() == (later,)


def test_what_changed_while_it_was_looked_at_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = bench.made("a", State.PREPARED).at(State.LEFTOVER)

    def look(_: Entry) -> bool:
        bench.journal.put(later)
        return False

    monkeypatch.setattr(bench.hardware.identity, "is_whole", look)
    assert not bench.janitor.check(UID)
    assert (bench.journal.entries(), bench.acts.seen) == ((later,), [])
