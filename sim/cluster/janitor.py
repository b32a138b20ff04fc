"""Ends processes and removes directories when the process that asked for it dies without doing so.

Run as a program in a session of its own, with orders on standard input, one per line: ``watch
<pid>``, ``remove <path>``, ``done``. At the end of the input (the asker is gone, however it went)
it kills and removes unless the last order was ``done``. Imports nothing of ours: it must be small.
An argument only tells readers of a process list whose janitor this is.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys

_WAIT_MILLISECONDS = 5000


def main() -> None:
    """Obey standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes: list[int] = []
    paths: list[str] = []
    for line in sys.stdin:
        order, _, argument = line.rstrip("\n").partition(" ")
        if order == "watch":
            # A descriptor keeps meaning the same process when its number is used again.
            with contextlib.suppress(ProcessLookupError):
                processes.append(os.pidfd_open(int(argument)))
        elif order == "remove":
            paths.append(argument)
        elif order == "done":
            return
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    for process in processes:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll(_WAIT_MILLISECONDS)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
