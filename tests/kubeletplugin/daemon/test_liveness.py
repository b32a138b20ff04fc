"""Kubelet's probes of the plugin: dead is only what a restart would mend."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest

from kubeletplugin import times
from sim.nvml.faults import Fault
from tests.helpers.waiting import PATIENCE, wait_for
from tests.kubeletplugin.helpers.rig import Rig


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers slowly is not taken for dead."""
    monkeypatch.setattr(times, "PROBE_SECONDS", PATIENCE)


def dead(rig: Rig) -> tuple[str, ...]:
    return rig.telemetry.probes.live.problems()


def unready(rig: Rig) -> tuple[str, ...]:
    return rig.telemetry.probes.ready.problems()


@pytest.mark.usefixtures("frequent_looks")
def test_no_gpu_and_no_api_server_make_it_unready_and_not_dead(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    rig.start()
    wait_for("readiness", lambda: not unready(rig))
    rig.http.down = True
    rig.machine.inject(Fault(id="gone", function="*", action="return", code=9, times=0))
    assert rig.daemon is not None
    wait_for("the look that fails", lambda: unready(rig))
    [problem] = unready(rig)
    assert "DRIVER_NOT_LOADED" in problem
    assert dead(rig) == ()


@pytest.mark.parametrize("name", ["registration socket", "service socket"])
def test_a_socket_that_somebody_removed_makes_it_dead(rig: Rig, name: str) -> None:
    socket = rig.registration_socket if name.startswith("reg") else rig.service_socket
    wait_for("readiness", lambda: not unready(rig))
    socket.unlink()
    [problem] = dead(rig)
    assert problem == f"{name}: {socket}: No such file or directory"


def test_a_server_that_takes_connections_and_answers_nobody_makes_it_dead(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for("readiness", lambda: not unready(rig))
    monkeypatch.setattr(times, "PROBE_SECONDS", 0.2)
    assert rig.daemon is not None
    release, workers = threading.Event(), rig.daemon.server._workers
    for _ in range(workers._max_workers):
        workers.submit(release.wait, PATIENCE)
    try:
        silent = f"registration socket: {rig.registration_socket} does not answer"
        assert any(problem.startswith(silent) for problem in dead(rig))
    finally:
        release.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("loop", "hardware"),
        ("janitor", "janitor"),
        ("monitor", "health"),
        ("mignode", "MigNode {}"),
        ("resource_slices", "ResourceSlices of {}"),
        ("statuses", "claim status"),
    ],
)
def test_a_thread_that_has_ended_makes_it_dead(
    make_rig: Callable[..., Rig], part: str, name: str
) -> None:
    rig = make_rig()
    rig.start()
    wait_for("readiness", lambda: not unready(rig))
    loop = attrgetter(part)(rig.daemon).thread

    def ends() -> None:
        raise SystemExit

    loop._turn = ends
    loop.notify()
    wait_for("the end", lambda: dead(rig))
    assert dead(rig) == (f"threads: {name.format(rig.node)} has ended",)


def test_a_plugin_that_stops_is_not_ready_and_not_dead(rig: Rig) -> None:
    rig.stop()
    assert unready(rig) == ("claims: the plugin is stopping",)
    assert dead(rig) == ()


def test_what_hangs_is_left_behind_by_a_stop_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "STOP_SECONDS", 0.2)
    assert rig.daemon is not None
    go_on = threading.Event()
    monkeypatch.setattr(rig.daemon.janitor, "give_up_idle", lambda: go_on.wait(PATIENCE))
    running = rig._thread
    assert running is not None
    try:
        rig._stop.set()
        running.join(PATIENCE / 4)
        assert not running.is_alive()
    finally:
        go_on.set()
    wait_for("the rest", lambda: "stop" not in {t.name for t in threading.enumerate()})


def test_the_chart_gives_a_stop_its_time() -> None:
    chart = Path("deploy/helm/dra-driver-nvidia-mig/templates/kubelet-plugin.yaml").read_text()
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", chart)
    longest = times.FIRST_LOOK_SECONDS + times.STOP_SECONDS
    assert longest < int(grace) - 5
    assert times.DRAIN_SECONDS * 2 < times.STOP_SECONDS
