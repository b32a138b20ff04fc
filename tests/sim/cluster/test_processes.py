"""Process processes and the directory that they live in."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest

from sim.processes import Process, Supervisor
from tests.helpers.folders import mounts_below
from tests.helpers.waiting import wait_for

_SLEEP = ["-c", "import time; time.sleep(600)"]
_DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready');"
_STUBBORN = ["-c", f"{_DEAF} time.sleep(600)"]


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _is_ready(child: Process) -> bool:
    return "ready" in child.log.read_text()


def test_children_and_the_temporary_directory_end_with_the_supervisor() -> None:
    with Supervisor() as supervisor:
        child = supervisor.spawn("sleeper", _SLEEP)
        directory = supervisor.directory
        assert _alive(child.pid)
        assert (directory / "logs" / "sleeper.log").exists()
        pid = child.pid
    assert not _alive(pid)
    assert not directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_nodes_mounted_ends_with_the_supervisor() -> None:
    """Plugins mount a file system for each claim with an MPS daemon."""
    with Supervisor() as supervisor:
        directory = supervisor.directory
        mount_in(directory)
    assert (mounts_below(directory), directory.exists()) == ([], False)


def mount_in(directory: Path) -> None:
    mounted = directory / "node/state/mps/claim"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", mounted], check=True)


def test_a_child_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.processes._STOP_SECONDS", 1.0)
    with Supervisor() as supervisor:
        child = supervisor.spawn("stubborn", _STUBBORN)
        wait_for("ready", partial(_is_ready, child))
        pid = child.pid
    assert not _alive(pid)


def test_nothing_survives_a_supervisor_that_is_killed() -> None:
    program = textwrap.dedent(
        """
        import time
        from sim.processes import Supervisor
        with Supervisor() as supervisor:
            child = supervisor.spawn("stubborn", ["-c", "import time; time.sleep(600)"])
            print(child.pid, supervisor.directory, flush=True)
            time.sleep(600)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, directory = process.stdout.readline().split()
    assert _alive(int(pid))
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for("end of the child", lambda: not _alive(int(pid)))
    wait_for("end of the directory", lambda: not Path(directory).exists())
