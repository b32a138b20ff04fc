"""Looks at GPUs after changes, for what is published: soon, and not while somebody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra.kube.loop import Loop
from dra.kube.timing import Clock

_GATHER_SECONDS = 0.02
"""Changes of one GPU in that time, such as a burst of Prepares makes, need one look."""


class Looks:
    """One thread. Thread-safe.

    ``look`` looks at a GPU by UUID, unless somebody works on it: whoever does asks for a look when
    done. A GPU that hangs holds it up for the deadline of one call.
    """

    def __init__(self, look: Callable[[str], None], *, clock: Clock | None = None) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._busy = False
        self.thread = Loop("looks", self._turn, clock=clock)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> None:
        """End after the look that is under way."""
        self.thread.stop()
        self.thread.join()

    def ask(self, gpu: str) -> None:
        """Have a GPU looked at soon. Waits for nothing."""
        with self._lock:
            self._wanted[gpu] = None
        self.thread.notify()

    @property
    def idle(self) -> bool:
        """True if no look is asked for or under way."""
        with self._lock:
            return not self._wanted and not self._busy

    def run(self) -> None:
        """Take all looks that are asked for."""
        while True:
            with self._lock:
                if not self._wanted:
                    return
                gpu = next(iter(self._wanted))
                del self._wanted[gpu]
                self._busy = True
            try:
                self._look(gpu)
            finally:
                with self._lock:
                    self._busy = False

    def _turn(self) -> None:
        if self._wanted and not self.thread.gather(_GATHER_SECONDS):
            self.run()
