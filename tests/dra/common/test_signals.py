"""A signal ends a program whatever its main thread is at."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading
from dra.common.program import stop_on_signals

ended, lock = threading.Event(), threading.Lock()

def stop():
    with lock:
        ended.set()

stop_on_signals(stop)
with lock:
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(10_000):
        pass
ended.wait()
print("ended in order")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_main_thread_may_hold_the_lock_that_the_end_takes(number: signal.Signals) -> None:
    """As ``Event.wait`` holds that of its event for a moment."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr
