"""How one GPU's XIDs are waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from dra.kube.timing import SystemClock
from kubeletplugin.gpus.monitor import XidWatch
from kubeletplugin.nvml.session import Session
from sim.nvml.machine import GpuSpec, Machine
from tests.helpers.waiting import wait_for


class RecordedSession(Session):
    """Notes for how many milliseconds events are waited for; takes no slow call for a hang."""

    def __init__(self, *, deadline: float) -> None:
        super().__init__(seconds=3600.0)
        self.seconds = deadline
        self.waits: list[int] = []

    def call(self, function: Callable[..., Any], *arguments: Any, gpu: str = "") -> Any:
        if function.__name__ == "nvmlEventSetWait_v2":
            self.waits.append(arguments[1])
        return super().call(function, *arguments, gpu=gpu)


@contextmanager
def watching(session: Session, gpu: str) -> Iterator[None]:
    session.open()
    session.take(0)
    watch = XidWatch(session, gpu, lambda _gpu, _event: None, clock=SystemClock())
    try:
        yield
    finally:
        watch.stop()
        watch.join(60.0)
        session.close()


@pytest.mark.parametrize("deadline", [0.05, 0.4])
def test_waiting_for_events_is_not_taken_for_a_hang_however_short_the_deadline(
    deadline: float, tmp_path: Path
) -> None:
    machine = Machine.create(tmp_path / "hw", [GpuSpec("A100-SXM4-40GB")])
    sim.nvml.install(machine.directory)
    session = RecordedSession(deadline=deadline)
    with watching(session, machine.gpu(0).uuid):
        wait_for("some waits", lambda: len(session.waits) >= 2)
    assert all(0 < milliseconds <= deadline * 1000 / 2 for milliseconds in session.waits)
