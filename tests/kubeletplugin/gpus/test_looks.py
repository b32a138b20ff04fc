"""Looks at GPUs that are asked for, and those that what was read back makes needless."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

import pytest

from dra.common.resources import NODES
from kubeletplugin import times
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.loop import Looks
from kubeletplugin.gpus.reader import GpuReader
from kubeletplugin.journal.entries import EntryKey
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.rig import Rig

A, B = ("uid-a", "gpu-0"), ("uid-b", "gpu-0")


def test_only_what_cannot_be_followed_is_looked_at() -> None:
    looked: list[str] = []
    followed: list[tuple[str, Collection[EntryKey]]] = []
    told: list[str] = []

    def follow(gpu: str, keys: Collection[EntryKey]) -> bool:
        followed.append((gpu, keys))
        return gpu == "GPU-1"

    def look(gpu: str) -> bool:
        looked.append(gpu)
        return True

    looks = Looks(look, follow=follow, on_read_back=lambda: told.append("changed"))
    looks.ask("GPU-1", [A])
    looks.ask("GPU-1", [B])
    looks.ask("GPU-2", [A])
    assert told == ["changed"] * 3
    looks.run()
    assert (looked, followed, looks.idle) == ([], [], False)
    looks.follow()
    assert followed == [("GPU-1", {A, B}), ("GPU-2", {A})]
    looks.run()
    assert (looked, looks.idle) == (["GPU-2"], True)
    looks.follow()
    assert len(followed) == 2


def _label(rig: Rig, value: str | None) -> None:
    named = {"nvidia.com/mig.config": value}
    rig.api.patch(NODES, rig.node, {"metadata": {"labels": named}})


def _reasons(rig: Rig) -> set[str]:
    return {gpu.get("reason", "") for gpu in rig.mignode()["status"]["gpus"]}


def test_a_look_at_a_gpu_on_which_somebody_works_is_made_afterwards(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "POLL_SECONDS", 3600.0)
    rig = make_rig()
    rig.start()
    assert rig.daemon is not None
    hardware, gpu = rig.daemon.gpus.hardware, rig.machine.gpu(0).uuid
    unit = hardware.unit(gpu)
    assert unit is not None
    with unit.lock:
        rig.machine.create_slice(0, "1g.5gb", start=4)
        hardware.look(gpu)
        _label(rig, "all-disabled")
        wait_for("the label", lambda: unit.known.conflict is not None)
        assert unit.known.seen is not None
        assert not unit.known.seen.instances
    wait_for("the instance", lambda: unit.known.seen is not None and unit.known.seen.instances)
    wait_for(
        "the conflict",
        lambda: rig.mignode()["status"]["gpus"][0].get("reason") == "MIGManagerActive",
    )


def test_no_gpu_is_asked_in_the_thread_that_hears_of_the_node(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.start()
    threads: set[str] = set()
    observe = GpuReader.observe

    def noted(reader: GpuReader, unit: GpuUnit) -> None:
        threads.add(threading.current_thread().name)
        observe(reader, unit)

    monkeypatch.setattr(GpuReader, "observe", noted)
    _label(rig, "all-disabled")
    wait_for("the conflict", lambda: _reasons(rig) == {"MIGManagerActive"})
    _label(rig, None)
    wait_for("its end", lambda: _reasons(rig) == {""})
    assert not [name for name in threads if name.startswith("reflector")]
