"""Looks at a GPU: what is on it, and at what price."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from dra.gpu.geometry import Placement
from kubeletplugin.gpus.description.gpu_reader import GpuReader
from kubeletplugin.journal.entries import State
from kubeletplugin.nvml.session.calls import CallPool
from tests.kubeletplugin.gpubench import GpuBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GpuBench]:
    yield GpuBench(tmp_path)
    sim.nvml.uninstall()


def test_a_look_is_one_operation_however_many_slices_there_are(
    bench: GpuBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation costs a change of threads, there and back."""
    made = [bench.made(f"c{n}", State.PREPARED, Placement(n, 1)) for n in range(4)]
    reader = GpuReader(
        bench.session, bench.journal, bench.watch, bench.identity, on_change=lambda: None
    )
    operations: list[str] = []
    elsewhere = CallPool._elsewhere

    def counted(pool: CallPool, name: str, *arguments: Any, **named: Any) -> Any:
        operations.append(name)
        return elsewhere(pool, name, *arguments, **named)

    monkeypatch.setattr(CallPool, "_elsewhere", counted)
    with bench.unit.lock:
        reader.read(bench.unit)
    assert len(operations) == 1
    seen = bench.unit.known.seen
    assert seen is not None
    assert [i.claim for i in seen.instances] == [e.claim for e in made]
    operations.clear()
    with bench.unit.lock:
        assert bench.identity.find_own_instance(made[0]).whole
    assert len(operations) == 1
