"""Janitor that ends processes and removes directories if the process that needed them dies.

Run as a program in a session of its own, with orders on standard input, one per line: ``watch
<pid>``, ``done``. At the end of the input (the asker is gone, however it went) it kills and removes
unless the last order was ``done``. Imports nothing of ours: it must be small. The first argument is
the directory, with a slash at its end: whoever has his standard output below it is killed as well,
as the asker may have died between starting a process and telling of it. For the same reason what is
to be removed is not told but given, as the arguments that follow.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_WAIT_MILLISECONDS = 5000
_ROUNDS = 10
_PAUSE_SECONDS = 0.1


def main() -> None:
    """Obeys standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    processes: list[int] = []
    for line in sys.stdin:
        order, _, argument = line.rstrip("\n").partition(" ")
        if order == "watch":
            processes.extend(_descriptor(int(argument)))
        elif order == "done":
            return
    for _ in range(_ROUNDS):
        _kill([*processes, *_strays(sys.argv[1])])
        unmount_below(sys.argv[1])
        for path in sys.argv[2:]:
            shutil.rmtree(path, ignore_errors=True)
        time.sleep(_PAUSE_SECONDS)


def unmount_below(place: str) -> None:
    """Ends what processes mounted in a directory (with a slash at its end): that outlives them."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if (point := line.split()[4]).startswith(place):
            command = ["umount", "--lazy", point]
            subprocess.run(command, check=False)


def _descriptor(pid: int) -> Iterator[int]:
    """It keeps meaning the same process when its number is used again; none if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        yield os.pidfd_open(pid)


def _strays(place: str) -> Iterator[int]:
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if str(output.readlink()).startswith(place):
                yield from _descriptor(int(output.parts[2]))


def _kill(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    for process in processes:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll(_WAIT_MILLISECONDS)


if __name__ == "__main__":
    main()
