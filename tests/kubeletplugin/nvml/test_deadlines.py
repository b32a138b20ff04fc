"""NVML calls that do not come back hold up their caller for a while, their GPU, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kubeletplugin.nvml.calls import Calls
from kubeletplugin.nvml.errors import HangError, NvmlError
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


def one_call(
    calls: Calls,
    name: str,
    work: Callable[[], object] = lambda: None,
    *,
    gpu: str = "GPU-1",
    factor: float = 1.0,
) -> object:
    return calls.operate(lambda: calls.run(name, work, factor=factor), gpu=gpu)


def test_a_call_that_hangs_is_left_and_the_next_for_that_gpu_fails_at_once(
    release: threading.Event,
) -> None:
    calls = Calls(0.1)
    with pytest.raises(HangError, match="NVML call nvmlX hangs since"):
        one_call(calls, "nvmlX", release.wait)
    begun: list[bool] = []
    with pytest.raises(HangError, match="nvmlX hangs"):
        one_call(calls, "nvmlY", lambda: begun.append(True), factor=PATIENTLY)
    assert begun == []
    assert "nvmlX" in calls.hangs("GPU-1")


def test_the_calls_of_an_operation_share_a_thread_and_have_a_deadline_each(
    release: threading.Event,
) -> None:
    calls = Calls(0.1)
    threads: set[int] = set()
    begun: list[str] = []

    def call(name: str, work: Callable[[], object] = lambda: None, factor: float = 1.0) -> None:
        def inside() -> None:
            threads.add(threading.get_ident())
            begun.append(name)
            work()

        calls.run(name, inside, factor=factor)

    def waited_for() -> None:
        mine = calls.current
        assert mine is not None
        wait_for("the caller's patience", lambda: mine.waited - mine.began > 1)

    def operation() -> None:
        call("nvmlW", waited_for, factor=PATIENTLY)
        calls.operate(lambda: call("nvmlX", release.wait), gpu="GPU-1")
        call("nvmlY")

    with pytest.raises(HangError, match="NVML call nvmlX hangs since"):
        calls.operate(operation, gpu="GPU-1")
    assert one_call(calls, "nvmlZ", lambda: 7, gpu="GPU-2") == 7
    with pytest.raises(HangError, match="nvmlX hangs"):
        calls.operate(operation, gpu="GPU-1")
    release.set()
    wait_for("its end", lambda: not calls.inside())
    assert not calls.hangs("GPU-1")
    assert begun == ["nvmlW", "nvmlX"], "nobody waits for what would come then"
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_nobody_has_the_library_alone_before_the_last_call_is_back(
    release: threading.Event,
) -> None:
    calls = Calls(0.1)
    with pytest.raises(HangError):
        one_call(calls, "nvmlX", release.wait)
    with calls.alone(0.01) as alone:
        assert not alone, "somebody is inside for whom nobody waits"
    release.set()
    wait_for("its end", lambda: not calls.inside())
    with calls.alone(PATIENCE) as alone:
        assert alone
        with pytest.raises(NvmlError, match="being opened anew") as late:
            one_call(calls, "nvmlY")
        assert calls.operate(lambda: 7, gpu="", alone=True) == 7
    assert late.value.passing
    one_call(calls, "nvmlY")


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
    session, gpu = rig.daemon.hardware.session, rig.machine.gpu(0).uuid
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
    rig.daemon.janitor.tend(everything=True)
    wait_for("the janitor", lambda: rig.slices() == [(1, "1g.5gb", 0, True)])
    rig.poll()
    wait_for("MigNode", lambda: gpu_reason(rig, 0) == ": ")


def test_an_instance_whose_creation_hung_is_found_and_removed_later(impatient: Rig) -> None:
    rig = impatient
    rig.machine.inject(
        Fault(id="hang", function="nvmlDeviceCreateGpuInstanceWithPlacement", action="hang")
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
    rig.daemon.hardware.discover()
    wait_for("MigNode", lambda: "hangs since" in gpu_reason(rig, 0))
    now = rig.mignode()["status"]["gpus"][0]
    said = {"reason", "message"}
    assert {k: v for k, v in now.items() if k not in said} == before
    released(rig)
    rig.poll()
    wait_for("MigNode", lambda: rig.mignode()["status"]["gpus"][0] == before)
