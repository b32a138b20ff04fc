"""A program that shuts NVML down while one of its threads waits for events, and tells what happens.

Prints ``end`` if the wait ended, ``hang`` if it stayed, ``open`` where that cannot be tried. It
leaves without cleaning up: a thread of it may be inside NVML for good.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

import pynvml

_WAIT_MILLISECONDS = 30_000
_BEGIN_SECONDS = 0.5
_END_SECONDS = 5.0


def main() -> None:
    """Try it on the first GPU that delivers events."""
    try:
        events = _registered()
    except pynvml.NVMLError as error:
        _leave(f"open: {error}")
    began, ended = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        with suppress(pynvml.NVMLError):  # whatever it says: it has come back
            pynvml.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    began.wait()
    ended.wait(_BEGIN_SECONDS)  # the call is inside NVML by then
    threading.Thread(target=pynvml.nvmlShutdown, daemon=True).start()
    _leave("end" if ended.wait(_END_SECONDS) else "hang")


def _registered() -> object:
    pynvml.nvmlInit()
    events = pynvml.nvmlEventSetCreate()
    refusal: pynvml.NVMLError | None = None
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            refusal = error
        else:
            return events
    raise refusal or pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _leave(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
