"""Two node programs on one node: the second says who has its GPUs, and waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dra.monitoring.probes import Probes
from kubeletplugin.daemon import daemon
from kubeletplugin.ownership import exclusive, is_replica, owned_at_once, this_program
from kubeletplugin.telemetry.telemetry import Telemetry
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import Rig

OWN = "mig-dra-driver/plugin-x of driver mig.dra.dev"


def test_who_waits_says_for_whom_and_leaves_when_told(tmp_path: Path) -> None:
    stop, waiting = threading.Event(), threading.Event()
    told: list[str] = []

    def waits(owner: str) -> None:
        told.append(owner)
        waiting.set()

    def second() -> bool:
        with exclusive(tmp_path, "b of driver y", stop, waits=waits) as alone:
            return alone

    with (
        ThreadPoolExecutor() as threads,
        exclusive(tmp_path, OWN, threading.Event(), waits=waits) as first,
    ):
        assert first
        result = threads.submit(second)
        assert waiting.wait(PATIENCE)
        assert not result.done()
        stop.set()
        assert result.result(PATIENCE) is False
    assert told == [OWN]
    stop.clear()
    assert second(), "it is free again"
    with owned_at_once(tmp_path, "c") as owner:
        assert owner == "", "what an ended program wrote is no owner"


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        ("mig-dra-driver/plugin-y of driver mig.dra.dev", True),
        ("other/plugin-x of driver mig.dra.dev", False),
        ("mig-dra-driver/plugin-y of driver gpu.nvidia.com", False),
        ("another program", False),
    ],
)
def test_only_another_pod_of_the_same_installation_is_a_replica(other: str, *, alike: bool) -> None:
    assert is_replica(OWN, other) is alike


@pytest.mark.parametrize(
    ("owner", "problem"),
    [
        ("b/x of driver a.example", "b/x of driver a.example has the GPUs of this node"),
        ("plugin-y of driver mig.dra.dev", ""),
    ],
)
def test_only_a_replica_is_ready_while_it_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, owner: str, problem: str
) -> None:
    monkeypatch.delattr(daemon, "Daemon")
    monkeypatch.setenv("POD_NAME", "plugin-x")
    probes, stop = Probes(), threading.Event()
    telemetry = Telemetry(probes=probes)
    assert "has not begun" in probes.ready.problems()[0]
    assert rig.daemon is not None
    options = rig.daemon.common.options
    with ThreadPoolExecutor() as threads, owned_at_once(rig.roots.registry, owner):
        served = threads.submit(daemon.serve, options, rig.api, telemetry, stop)
        told = (f"claims: {problem}",) if problem else ()
        try:
            wait_for("readiness", lambda: probes.ready.problems() == told)
        finally:
            stop.set()
        served.result(PATIENCE)


def test_a_program_is_named_by_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "plugin-x")
    assert this_program("mig.dra.dev", tmp_path) == "plugin-x of driver mig.dra.dev"
    (tmp_path / "namespace").write_text("mig-dra-driver")
    assert this_program("mig.dra.dev", tmp_path) == OWN
