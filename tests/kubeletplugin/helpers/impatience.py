"""NVML calls that a fault lets hang are given up soon; all others have their usual time.

So a test of hanging calls is quick, and on a slow machine nothing is taken for a hang that is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from kubeletplugin.nvml.calls import Calls
from sim.nvml.machine import Machine

T = TypeVar("T")
_BY_INDEX = "with index "
_FACTOR = 0.05
"""Of the 10 s that a call has."""


def give_up_hanging_calls(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """For all plugins of this process from now on; their GPUs are those of ``machine``."""
    uuids = [gpu.uuid for gpu in machine.state().gpus]
    numbers = {uuid: number for number, uuid in enumerate(uuids)}
    run = Calls.run

    def hangs(name: str, label: str) -> bool:
        uuid = label.partition(" ")[0]  # what waits for events has a label of its own
        if label.startswith(_BY_INDEX):
            uuid = uuids[int(label.removeprefix(_BY_INDEX))]
        gpu = (uuid, numbers[uuid]) if uuid in numbers else None
        rules = machine.faults.rules()
        return any(rule.action == "hang" and rule.matches(name, gpu) for rule in rules)

    def impatient(calls: Calls, name: str, work: Callable[[], T], *, factor: float = 1.0) -> T:
        assert calls.current is not None
        is_late = hangs(name, calls.current.gpu)
        return run(calls, name, work, factor=_FACTOR if is_late else factor)

    monkeypatch.setattr(Calls, "run", impatient)
