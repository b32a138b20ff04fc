"""The janitor: what a start finds half done, specs of no claim, and slices that are gone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims import janitor
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.errors import BusyError, StartingError
from kubeletplugin.journal.entries import ARRIVING, HELD, Entry, State
from kubeletplugin.telemetry.observer import Action
from tests.helpers.waiting import PATIENCE
from tests.kubeletplugin.claims.janitorbench import UID, Bench
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- what was left half done


@pytest.mark.parametrize("state", sorted(ARRIVING))
@pytest.mark.parametrize("fate", ClaimFate)
def test_what_is_half_made_is_finished_if_it_is_to_run_here_and_else_undone(
    bench: Bench, fate: ClaimFate, state: State
) -> None:
    entry = bench.made("a", state)
    bench.fate = fate
    bench.janitor.recover()
    if fate is ClaimFate.HERE:
        assert (bench.finished, bench.acts.seen) == (["a"], [Action.FINISHED])
        assert bench.journal.entries() == (entry,)
    elif fate is ClaimFate.UNKNOWN:
        assert (bench.finished, bench.acts.seen) == ([], [])
        assert (bench.journal.entries(), len(bench.places())) == ((entry,), 1)
    else:
        assert (bench.finished, bench.acts.seen) == ([], [Action.UNDONE])
        assert (bench.journal.entries(), bench.places()) == ((), [])
    assert bench.cut_short is (fate in {ClaimFate.HERE, ClaimFate.UNKNOWN})


def test_what_cannot_be_finished_as_nobody_answers_stays(bench: Bench) -> None:
    entry = bench.made("a", State.CI_CREATED)
    bench.refusal = StartingError("the API server does not answer")
    bench.janitor.recover()
    assert (bench.acts.seen, bench.journal.entries()) == ([], (entry,))


def test_others_are_served_while_a_claim_takes_long_and_its_own_calls_join(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "RECOVERY_SECONDS", 0.0)
    bench.made("a", State.CI_CREATED)
    go_on, joined = threading.Event(), threading.Event()
    bench.on_finish = lambda _: go_on.wait(PATIENCE)
    with ThreadPoolExecutor() as threads:
        running = threads.submit(bench.janitor.recover)
        try:
            running.result(PATIENCE / 4)
            assert not bench.tasks.idle(UID)
            end = time.monotonic() + PATIENCE
            call = threads.submit(bench.tasks.run, UID, "prepare", joined.set, deadline=end)
            assert not joined.is_set()
        finally:
            go_on.set()
        call.result(PATIENCE)
    assert (bench.finished, joined.is_set()) == (["a"], True)


# -- specs that belong to no claim


def test_while_something_may_be_missing_no_spec_is_swept_and_once_it_is_not_it_is(
    bench: Bench,
) -> None:
    bench.journal.put(bench.entry("a", state=State.TOMBSTONE, gpu="GPU-other"))
    bench.specs.files = {UID: ["x"], "gone": ["y"]}
    bench.janitor.recover()
    bench.janitor.tend()
    assert (len(bench.specs.files), bench.acts.seen) == (2, [])
    bench.settled()
    bench.janitor.check_soon()
    bench.janitor.tend()
    assert (bench.specs.files, bench.acts.seen) == ({UID: ["x"]}, [Action.SWEPT])


# -- prepared slices and the hardware

HERE_AND_GONE = pytest.mark.parametrize("there", [True, False], ids=["there", "gone"])


@HERE_AND_GONE
@pytest.mark.parametrize("state", sorted(HELD))
def test_a_held_slice_is_prepared_while_it_is_there_and_else_lost(
    bench: Bench, *, there: bool, state: State
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


# -- made again


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


def test_after_a_boot_a_slice_is_lost_though_the_gpu_is_away(bench: Bench) -> None:
    bench.journal.put(bench.entry("a", state=State.PREPARED, boot_id="before"))
    bench.hardware.found = {}
    assert bench.janitor.check(UID)
    assert bench.states() == [State.LOST]
