"""Steps of a Prepare or Unprepare that fail: nothing leaks, and the next attempt succeeds."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cdi import files
from kubeletplugin.journal import journal as journal_module
from sim.nvml.faults import Fault
from tests.kubeletplugin.rig import Rig
from tests.waiting import wait_for

TWO_SLICES = ("gpu-0-mig-1g5gb-19-4", "gpu-1-mig-2g10gb-14-0")
MOST_CALLS = 400


def calls_of_prepare(rig: Rig) -> int:
    """How many NVML calls an undisturbed Prepare makes, with the look at the GPU after it."""
    ref = rig.claim(*TWO_SLICES)
    rig.machine.configure(record_calls=True)
    before = len(rig.machine.calls())
    rig.prepared(ref)
    made = len(rig.machine.calls()) - before
    rig.machine.configure(record_calls=False)
    assert rig.unprepare(ref) == ""
    return made


def quiet(rig: Rig) -> None:
    """Keep the background look at the GPUs out of the count."""
    assert rig.daemon is not None
    rig.daemon.gpus.loop.stop()
    rig.daemon.gpus.monitor.stop()


@pytest.mark.timeout(300)
def test_whichever_nvml_call_of_a_prepare_fails_nothing_leaks(rig: Rig) -> None:
    quiet(rig)
    total = calls_of_prepare(rig)
    assert 20 < total < MOST_CALLS
    failed = 0
    for k in range(total):
        ref = rig.claim(*TWO_SLICES)
        fault = Fault(id=f"f{k}", function="*", action="return", code=29, after=k)
        rig.machine.inject(fault)
        answer = rig.prepare(ref)
        rig.machine.clear_faults()
        if answer.error:
            failed += 1
            assert "(29)" in answer.error
            assert ref.uid in answer.error
            assert rig.clean(), f"call {k} failed: {answer.error}; left {rig.slices()}"
            continue
        assert len(rig.slices()) == 2
        assert rig.unprepare(ref) == ""
        assert rig.clean(), f"after call {k}"
    # What fails after the answer is decided, the look at the GPU, does not fail the claim.
    assert failed > total // 3


@pytest.mark.timeout(300)
def test_whichever_nvml_call_of_a_prepare_fails_in_passing_it_succeeds(rig: Rig) -> None:
    quiet(rig)
    total = calls_of_prepare(rig)
    for k in range(0, total, 3):
        ref = rig.claim(*TWO_SLICES)
        rig.machine.inject(Fault(id=f"f{k}", function="*", action="return", code=999, after=k))
        rig.prepared(ref)
        rig.machine.clear_faults()
        assert len(rig.slices()) == 2
        assert rig.unprepare(ref) == ""
        assert rig.clean(), f"after call {k}"


def tended(rig: Rig) -> bool:
    """Whether a round of the janitor, who may be at work on a claim already, left nothing."""
    assert rig.daemon is not None
    rig.daemon.claims.janitor.tend(everything=True)
    return rig.clean()


@pytest.mark.timeout(300)
def test_whichever_nvml_call_of_an_unprepare_fails_the_rest_is_done_in_the_background(
    rig: Rig,
) -> None:
    quiet(rig)
    withheld = 0
    assert rig.daemon is not None
    for k in range(MOST_CALLS):
        ref = rig.claim(*TWO_SLICES)
        rig.prepared(ref)
        rig.machine.inject(Fault(id=f"f{k}", function="*", action="return", code=29, after=k))
        assert rig.unprepare(ref) == ""
        reached = rig.machine.faults.seen(f"f{k}") > k
        rig.machine.clear_faults()
        withheld += bool(rig.journal())
        wait_for(f"the rest after call {k}", lambda: tended(rig))
        if not reached:
            break
    else:
        pytest.fail("Unprepare makes too many calls")
    assert withheld > 5


def test_a_compute_instance_that_cannot_be_made_takes_its_gpu_instance_with_it(rig: Rig) -> None:
    rig.machine.inject(
        Fault(
            id="ci",
            function="nvmlGpuInstanceCreateComputeInstance",
            action="return",
            code=23,
        )
    )
    assert "INSUFFICIENT_RESOURCES" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    assert "nvmlGpuInstanceDestroy" in rig.mutations()
    assert rig.clean()


def test_a_profile_whose_compute_instance_is_not_supported_is_offered_no_more(rig: Rig) -> None:
    rig.machine.inject(
        Fault(
            id="ci",
            function="nvmlGpuInstanceCreateComputeInstance",
            action="return",
            code=3,
        )
    )
    assert "NOT_SUPPORTED" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    assert rig.clean()

    def offered() -> list[list[str]]:
        status = rig.mignode()["status"]
        by_name = {g["name"]: [p["name"] for p in g["profiles"]] for g in status["geometries"]}
        return [by_name[g["geometry"]] for g in status["gpus"]]

    wait_for("MigNode", lambda: "1g.5gb" not in offered()[0])
    assert "1g.5gb" in offered()[1]
    assert "has no profile 1g5gb-19" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))


def test_nvml_that_says_success_and_does_nothing_is_not_believed(rig: Rig) -> None:
    for function in (
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
    ):
        rig.machine.inject(Fault(id="nothing", function=function, action="no-effect"))
        rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
        assert rig.clean()


def break_rollback(rig: Rig) -> None:
    for function in ("nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceDestroy"):
        fault = Fault(id=function, function=function, action="return", code=29, times=0)
        rig.machine.inject(fault)


def test_a_rollback_that_fails_is_told_and_finished_later(rig: Rig) -> None:
    ref = rig.claim("gpu-0-mig-1g5gb-19-4")
    break_rollback(rig)
    error = rig.refused(ref)
    assert "undoing it failed too" in error
    assert "nvmlGpuInstanceDestroy" in error
    assert [e.state.value for e in rig.journal()] == ["ci-destroyed"]
    rig.machine.clear_faults()
    assert rig.slices() == [(0, "1g.5gb", 4, False)]
    rig.prepared(ref)
    assert rig.slices() == [(0, "1g.5gb", 4, True)]


def test_what_a_failed_rollback_left_is_removed_in_the_background(
    rig: Rig,
) -> None:
    break_rollback(rig)
    rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    assert not rig.clean()
    rig.machine.clear_faults()
    wait_for("the janitor", rig.clean)


def failing_writes(
    monkeypatch: pytest.MonkeyPatch, path: Path, fails: Callable[[int], bool]
) -> list[int]:
    """Make the n-th writes of ``path`` for which ``fails(n)`` fail as a full disk does."""
    count = [0]

    def write(target: Path, data: bytes, *, mode: int = 0o644) -> None:
        if target == path:
            count[0] += 1
            if fails(count[0]):
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
        files.write_durably(target, data, mode=mode)

    monkeypatch.setattr(journal_module, "write_durably", write)
    return count


@pytest.mark.parametrize("nth", range(1, 10))
def test_a_journal_write_that_fails_undoes_the_hardware(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    path = rig.roots.state / "journal.json"
    ref = rig.claim(*TWO_SLICES)
    with monkeypatch.context() as patch:
        count = failing_writes(patch, path, lambda n: n == nth)
        answer = rig.prepare(ref)
    if nth <= 8:
        assert "No space left on device" in answer.error
        assert str(path) in answer.error
        assert rig.clean()
    else:
        assert not answer.error, "an undisturbed Prepare of two slices writes eight times"
        assert count == [8]
    rig.prepared(ref)


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_disk_that_stays_full_leaves_no_instance_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    ref = rig.claim(*TWO_SLICES)
    with monkeypatch.context() as patch:
        failing_writes(patch, rig.roots.state / "journal.json", lambda n: n >= nth)
        assert "No space left on device" in rig.refused(ref)
        assert rig.slices() == []
        assert rig.specs() == []
    rig.prepared(ref)
    assert rig.unprepare(ref) == ""
    assert rig.clean()


def test_a_cdi_directory_that_cannot_be_written_is_told_before_anything_is_cut(rig: Rig) -> None:
    rig.roots.cdi.parent.mkdir(exist_ok=True)
    rig.roots.cdi.write_text("a file where the directory should be")
    ref = rig.claim(*TWO_SLICES)
    error = rig.refused(ref)
    assert str(rig.roots.cdi) in error
    assert rig.mutations() == []
    assert rig.journal() == ()
    rig.roots.cdi.unlink()
    rig.prepared(ref)


def test_a_cdi_spec_that_cannot_be_written_undoes_the_hardware(rig: Rig) -> None:
    ref = rig.claim(*TWO_SLICES)
    in_the_way = rig.roots.cdi / f"k8s.mig.dra.dev-claim_{ref.uid}.yaml"
    in_the_way.mkdir(parents=True)
    assert str(in_the_way) in rig.refused(ref)
    assert rig.mutations()
    assert rig.slices() == []
    assert rig.journal() == ()
    in_the_way.rmdir()
    rig.prepared(ref)


def test_without_privileges_the_error_says_what_is_missing(rig: Rig) -> None:
    rig.machine.configure(privileged=False)
    error = rig.refused(rig.claim("gpu-0-mig-1g5gb-19-4"))
    assert "NO_PERMISSION" in error
    assert "root or CAP_SYS_ADMIN" in error
    assert rig.machine.gpu(0).uuid in error
    assert rig.clean()


def test_capacity_that_the_driver_refuses_names_what_is_on_the_gpu(rig: Rig) -> None:
    # Two +me instances overlap in no memory slice, but there is one set of media engines.
    holder = rig.claim("gpu-0-mig-1g5gb-me-20-0")
    rig.prepared(holder)
    error = rig.refused(rig.claim("gpu-0-mig-1g5gb-me-20-3"))
    assert "INSUFFICIENT_RESOURCES" in error
    assert holder.uid in error
