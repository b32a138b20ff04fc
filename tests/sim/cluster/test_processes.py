"""Process processes and the directory that they live in."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from sim.processes import Supervisor
from tests.helpers.waiting import wait_for

_SLEEP = ["-c", "import time; time.sleep(600)"]


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_children_and_the_temporary_directory_end_with_the_supervisor() -> None:
    with Supervisor() as supervisor:
        child = supervisor.spawn("sleeper", _SLEEP)
        directory = supervisor.directory
        assert _alive(child.pid)
        assert (directory / "logs" / "sleeper.log").exists()
        pid = child.pid
    assert not _alive(pid)
    assert not directory.exists()


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
