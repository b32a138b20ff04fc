"""The end of a program by a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Have ``stop`` called at SIGTERM or SIGINT, in a thread of its own; for the main thread.

    A handler in Python runs in the main thread, between any two of its steps. It would wait for
    ever for a lock that the main thread has then, as ``Event.wait`` and ``Thread.start`` do for a
    moment. The handler here does nothing: the interpreter writes the number of the signal to a
    pipe when it comes (``signal.set_wakeup_fd``), and the thread reads it there.
    """
    read, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def wait() -> None:
        while number := os.read(read, 1):
            _log.info("stopping", extra={"signal": signal.Signals(number[0]).name})
            stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()
