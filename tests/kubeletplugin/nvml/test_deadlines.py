"""NVML calls that do not come back hold up their caller for a while, their GPU, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kubeletplugin.nvml.calls import CallPool
from kubeletplugin.nvml.errors import HangError
from sim.nvml.faults import Fault
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.impatience import give_up_hanging_calls
from tests.kubeletplugin.helpers.rig import Rig

SLICE = "gpu-0-mig-1g5gb-19-4"


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Lets a call that hangs go on, at the latest when the test ends."""
    event = threading.Event()
    yield event
    event.set()


PATIENTLY = 1e6
"""A factor: a call with it has all the time of the test."""


def hang(pool: CallPool, release: threading.Event, gpu: str = "GPU-1") -> None:
    with pytest.raises(HangError, match="NVML call nvmlX hangs since"):
        pool.run("nvmlX", release.wait, gpu=gpu)


def test_a_call_that_hangs_is_left_and_the_next_for_that_gpu_fails_at_once(
    release: threading.Event,
) -> None:
    pool = CallPool(0.1)
    hang(pool, release)
    begun: list[bool] = []
    with pytest.raises(HangError, match="nvmlX hangs"):
        pool.run("nvmlY", lambda: begun.append(True), gpu="GPU-1", factor=PATIENTLY)
    assert begun == []
    assert "nvmlX" in pool.hangs("GPU-1")


def test_changes_have_more_time_and_are_shown_as_hanging_before_it_is_over(
    release: threading.Event,
) -> None:
    pool = CallPool(0.05)
    done: list[bool] = []
    caller = threading.Thread(
        target=lambda: done.append(pool.run("nvmlX", release.wait, gpu="GPU-1", factor=PATIENTLY))
    )
    caller.start()
    wait_for("the hint", lambda: "nvmlX" in pool.hangs("GPU-1"))
    release.set()
    caller.join(PATIENCE)
    assert done == [True]


def test_threads_are_used_again_and_errors_come_through() -> None:
    pool = CallPool(PATIENCE)
    before = threading.active_count()

    def fail() -> None:
        raise KeyError("x")

    for _ in range(200):
        pool.run("nvmlX", lambda: None, gpu="")
        with pytest.raises(KeyError):
            pool.run("nvmlX", fail, gpu="GPU-1")
    assert threading.active_count() - before <= 3


def test_the_calls_of_an_operation_share_a_thread_and_have_a_deadline_each(
    release: threading.Event,
) -> None:
    pool = CallPool(0.1)
    threads: set[int] = set()
    begun: list[str] = []

    def call(name: str, work: Callable[[], object] = lambda: None, factor: float = 1.0) -> None:
        def inside() -> None:
            threads.add(threading.get_ident())
            begun.append(name)
            work()

        pool.run(name, inside, gpu="GPU-1", factor=factor)

    def waited_for() -> None:
        [mine] = pool._running
        wait_for("the caller's patience", lambda: mine.waited - mine.began > 1)

    def operation() -> None:
        call("nvmlW", waited_for, factor=PATIENTLY)
        call("nvmlX", release.wait)
        call("nvmlY")

    with pytest.raises(HangError, match="NVML call nvmlX hangs since"):
        pool.together(operation, gpu="GPU-1")
    assert pool.together(lambda: pool.run("nvmlZ", lambda: 7, gpu="GPU-2"), gpu="GPU-2") == 7
    with pytest.raises(HangError, match="nvmlX hangs"):
        pool.together(operation, gpu="GPU-1")
    release.set()
    wait_for("the call", lambda: not pool.hangs("GPU-1"))
    wait_for("its end", lambda: not pool.inside())
    assert begun == ["nvmlW", "nvmlX"], "nobody waits for what would come then"
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_an_operation_gives_what_its_work_gives_and_raises_what_it_raises() -> None:
    pool = CallPool(PATIENCE)

    def fail() -> None:
        raise KeyError("x")

    def operation() -> int:
        with pytest.raises(KeyError):
            pool.run("nvmlX", fail, gpu="GPU-1")
        return pool.together(lambda: pool.run("nvmlY", lambda: 7, gpu="GPU-1"), gpu="GPU-1")

    assert pool.together(operation, gpu="GPU-1") == 7
    with pytest.raises(KeyError):
        pool.together(fail, gpu="GPU-1")
    assert pool.inside() == ()


@pytest.fixture
def impatient(make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A plugin that gives an NVML call half a second if it hangs."""
    rig = make_rig()
    give_up_hanging_calls(monkeypatch, rig.machine)
    rig.start()
    return rig


def gpu_reason(rig: Rig, number: int) -> str:
    gpu = rig.mignode()["status"]["gpus"][number]
    return f"{gpu.get('reason', '')}: {gpu.get('message', '')}"


def released(rig: Rig) -> None:
    """The call for the first GPU that hung has come back."""
    rig.machine.clear_faults()
    assert rig.daemon is not None
    session, gpu = rig.daemon.gpus.hardware.session, rig.machine.gpu(0).uuid
    wait_for("the call", lambda: not session.hangs(gpu))


def test_a_gpu_that_hangs_is_shown_with_the_call_and_serves_again_when_it_answers(
    impatient: Rig,
) -> None:
    rig = impatient
    kept = rig.claim(SLICE)
    rig.prepared(kept)
    rig.machine.inject(Fault(id="hang", function="*", action="hang", gpu=0, times=0))
    assert rig.daemon is not None
    rig.poll()
    wait_for("MigNode", lambda: "NVMLHang: NVML call" in gpu_reason(rig, 0))
    assert "hangs since" in gpu_reason(rig, 0)
    assert gpu_reason(rig, 1) == ": "
    rig.prepared(rig.claim("gpu-1-mig-1g5gb-19-0"))
    assert "hangs since" in rig.refused(rig.claim("gpu-0-mig-1g5gb-19-0"))
    assert rig.unprepare(kept) == "", "so that the pod can end"
    released(rig)
    rig.daemon.claims.janitor.tend(everything=True)
    wait_for("the janitor", lambda: rig.slices() == [(1, "1g.5gb", 0, True)])
    rig.poll()
    wait_for("MigNode", lambda: gpu_reason(rig, 0) == ": ")


def test_an_instance_whose_creation_hung_is_found_and_removed_later(impatient: Rig) -> None:
    rig = impatient
    rig.machine.inject(
        Fault(
            id="hang",
            function="nvmlDeviceCreateGpuInstanceWithPlacement",
            action="hang",
        )
    )
    assert "hangs since" in rig.refused(rig.claim(SLICE))
    assert [e.state.value for e in rig.journal()] == ["orphan"]
    rig.machine.clear_faults()  # the call goes on, and makes the instance
    wait_for("the late instance", lambda: rig.slices() or rig.clean())
    wait_for("the janitor", rig.clean)


def test_a_gpu_that_hangs_while_all_are_looked_for_keeps_its_description(impatient: Rig) -> None:
    rig = impatient
    rig.prepared(rig.claim(SLICE))
    wait_for("MigNode", lambda: rig.published_slices() == [("gpu-0", "1g.5gb", 4, "prepared")])
    before = rig.mignode()["status"]["gpus"][0]
    rig.machine.inject(
        Fault(id="hang", function="nvmlDeviceGetMigMode", action="hang", gpu=0, times=0)
    )
    assert rig.daemon is not None
    rig.daemon.gpus.hardware.discover()
    wait_for("MigNode", lambda: "hangs since" in gpu_reason(rig, 0))
    now = rig.mignode()["status"]["gpus"][0]
    said = {"reason", "message"}
    assert {k: v for k, v in now.items() if k not in said} == before
    released(rig)
    rig.poll()
    wait_for("MigNode", lambda: rig.mignode()["status"]["gpus"][0] == before)
