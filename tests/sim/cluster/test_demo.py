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
    ("moment", "number"), [("simulated", signal.SIGINT), ("Starting an API server", signal.SIGTERM)]
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
