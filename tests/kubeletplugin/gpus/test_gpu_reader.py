"""Looks at a GPU: what is on it, and at what price."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra.common.resources import NODES
from dra.gpu.geometry import Placement
from kubeletplugin import times
from kubeletplugin.gpus.reader import GpuReader
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.calls import Calls
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.gpubench import GpuBench
from tests.kubeletplugin.helpers.rig import Rig


def gone(bench: GpuBench, entry: Entry) -> None:
    assert entry.gi_id is not None
    bench.machine.destroy_slice(0, entry.gi_id)
    bench.journal.remove(entry)


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


@pytest.fixture
def reader(bench: GpuBench) -> GpuReader:
    return GpuReader(bench.session, bench.journal, bench.identity, on_change=lambda: None)


def test_an_id_that_an_instance_of_somebody_else_had_takes_a_look(
    bench: GpuBench, reader: GpuReader
) -> None:
    foreign = bench.machine.create_slice(0, "1g.5gb", start=6)
    reader.read(bench.unit)
    entry = bench.entry("a", state=State.PREPARED, gi_id=foreign.gpu_instance, ci_id=0)
    bench.journal.put(entry)
    assert not reader.follow(bench.unit, [entry.key])


# -- looks at GPUs that are asked for, and those that what was read back makes needless


def _label(rig: Rig, value: str | None) -> None:
    named = {"nvidia.com/mig.config": value}
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": named}})


def test_a_look_at_a_gpu_on_which_somebody_works_is_made_afterwards(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "POLL_SECONDS", 3600.0)
    rig = make_rig()
    rig.start()
    assert rig.daemon is not None
    hardware, gpu = rig.daemon.hardware, rig.machine.gpu(0).uuid
    unit = hardware.unit(gpu)
    assert unit is not None
    with unit.lock:
        rig.machine.create_slice(0, "1g.5gb", start=4)
        hardware.look_soon(gpu)
        _label(rig, "all-disabled")
        wait_for("the label", lambda: unit.conflict is not None)
        assert unit.seen is not None
        assert not unit.seen.instances
    wait_for("the instance", lambda: unit.seen is not None and unit.seen.instances)
    wait_for(
        "the conflict",
        lambda: rig.mignode()["status"]["gpus"][0].get("reason") == "MIGManagerActive",
    )


def test_what_was_read_back_is_published_as_a_look_shows_it(
    bench: GpuBench, reader: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, stays = (bench.made(n, State.PREPARED, Placement(i, 1)) for i, n in enumerate("ab"))
    bench.machine.create_slice(0, "1g.5gb", start=6)
    reader.read(bench.unit)
    gone(bench, first)
    made = bench.made("c", State.PREPARED, Placement(0, 1))
    ahead = bench.made("d", State.CI_CREATED, Placement(3, 1), early=True)

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("NVML was asked")

    with monkeypatch.context() as patched:
        patched.setattr(Calls, "run", asked)
        assert reader.follow(bench.unit, [first.key, made.key, ahead.key])
    followed = bench.unit.seen
    assert followed is not None
    holders = [i.claim for i in followed.instances]
    assert holders == [made.claim, stays.claim, ahead.claim, None]
    reader.read(bench.unit)
    assert bench.unit.seen == followed
