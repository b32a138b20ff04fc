"""A node on which slices are made, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.session import Session
from tests.kubeletplugin.helpers.gpubench import GpuBench

T = TypeVar("T")
CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"


class InterruptedSession(Session):
    """Calls of which something happens just before, by the function's name."""

    def __init__(self, meanwhile: dict[str, Callable[[], None]]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def call(self, function: Callable[..., T], *arguments: Any, gpu: str = "") -> T:
        self._meanwhile.pop(function.__name__, lambda: None)()
        return super().call(function, *arguments, gpu=gpu)


class Bench(GpuBench):
    """One A100, on which slices are made; ``meanwhile`` happens before a call of that name."""

    def __init__(self, folder: Path) -> None:
        self.meanwhile: dict[str, Callable[[], None]] = {}
        super().__init__(folder, session=InterruptedSession(self.meanwhile))

    def ensure(self, entry: Entry) -> Entry:
        return self.slices.ensure(self.unit, entry)

    def made_well(self, entry: Entry) -> None:
        """An entry has its slice, and the journal says so, in every detail."""
        (gi,) = self.machine.gpu(0).gpu_instances
        (ci,) = gi.compute_instances
        assert self.journal.get(entry) == entry
        assert (entry.state, entry.boot_id) == (State.CI_CREATED, "boot")
        assert (entry.gi_id, entry.ci_id, entry.mig_uuid) == (gi.id, ci.id, ci.uuid)
        assert (gi.start, gi.size, gi.profile) == (4, 1, 19)
