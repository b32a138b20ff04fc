"""The demo as a program: it succeeds, and an interrupted one leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.cluster.conftest import processes_in


@pytest.fixture
def process(short_temporary: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"TMPDIR": str(short_temporary), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "sim", "demo"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_the_demo_shows_the_whole_way_of_a_slice_and_leaves_nothing(
    process: subprocess.Popen[str], short_temporary: Path
) -> None:
    output, _ = process.communicate(timeout=5 * PATIENCE)
    assert process.returncode == 0, output
    assert "\x1b[" not in output
    for text in (
        "solver-a    runs on node-",
        "7g.40gb",
        "note-c",
        "Ready=True (Prepared)",
        "/dev/nvidia-caps/nvidia-cap",
        "container server: the same",
        "solver-c waits",
        "no room for 7g.40gb",
        "ok  no slice on the simulated GPUs",
        "ok  no CDI spec of a claim",
        "10 slices were made and removed",
    ):
        assert text in output
    assert list(short_temporary.iterdir()) == []
    assert processes_in(short_temporary) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [("simulated", signal.SIGINT), ("Starting an API server", signal.SIGTERM)],
)
def test_an_interrupted_demo_leaves_no_process_and_no_file(
    process: subprocess.Popen[str], short_temporary: Path, number: signal.Signals, moment: str
) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if moment in line:
            break
    else:
        process.communicate(timeout=PATIENCE)
        pytest.fail(f"the demo ended before {moment!r}:\n{''.join(seen)}")
    wait_for("processes", lambda: processes_in(short_temporary))
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -number
    wait_for("end of all processes", lambda: not processes_in(short_temporary))
    wait_for("removal of all files", lambda: not list(short_temporary.iterdir()))


_LOST = """
import logging, os, runpy, signal, sys
from contextlib import nullcontext
from types import SimpleNamespace as Made
from sim.cluster import cli
from sim.cluster.demo import Tour

place, program = sys.argv[1:]
end = '''
def end():
    if not said:
        said.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
'''
names = {"os": os, "signal": signal, "said": []}
exec(compile(end, logging.__file__, "exec"), names)

class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

if place == "fork":
    os.register_at_fork(after_in_parent=names["end"])
else:
    supervisor = Made(children={}, check=lambda: None, ended=list)
    api = Made(list=lambda *_, **__: Made(items=[]))
    cluster = Made(supervisor=supervisor, api=api)
    cli.running_cluster = lambda *_, **__: nullcontext(cluster)
    cli._explain = lambda *_, **__: Dropped()
    Tour.run = lambda tour: Dropped() is None or tour.wait("nothing", lambda: False)
sys.argv = ["sim", program]
runpy.run_module("sim", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("place", "program", "code"),
    [
        ("fork", "demo", -signal.SIGTERM),
        ("destructor", "demo", -signal.SIGTERM),
        ("destructor", "up", 0),
    ],
)
def test_an_interruption_that_python_drops_ends_it_too(
    short_temporary: Path, place: str, program: str, code: int
) -> None:
    """After a fork the lock of all logs would stay taken, what a destructor raises is dropped."""
    done = subprocess.run(
        [sys.executable, "-c", _LOST, place, program],
        env=os.environ | {"TMPDIR": str(short_temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Ended, nothing is left behind." in done.stdout
    assert ("Exception ignored in" in done.stderr) == (place == "destructor")
