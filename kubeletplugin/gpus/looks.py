"""Looks at GPUs after changes, for what is published: soon, and not while somebody waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from dra.kube.loop import Loop
from dra.kube.timing import Clock
from kubeletplugin.journal.entries import EntryKey

_GATHER_SECONDS = 0.02
"""Changes of one GPU in that time, such as a burst of Prepares makes, need one look."""

_AGAIN_SECONDS = 0.1


class Looks:
    """One thread. Thread-safe.

    ``look`` looks at a GPU by UUID; False: somebody works on it, so that it is tried again. A GPU
    that hangs holds it up for the deadline of one call. ``follow`` does without a look where what
    was read back says all, which it answers; it asks no GPU. ``on_read_back`` is called when there
    is something to follow.
    """

    def __init__(
        self,
        look: Callable[[str], bool],
        *,
        follow: Callable[[str, Collection[EntryKey]], bool],
        on_read_back: Callable[[], None],
        clock: Clock | None = None,
    ) -> None:
        self._look = look
        self._follow = follow
        self._on_read_back = on_read_back
        self._lock = threading.Lock()
        self._wanted: dict[str, None] = {}
        self._read_back: dict[str, set[EntryKey]] = {}
        self._busy = False
        self.thread = Loop("looks", self._turn, clock=clock)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self) -> None:
        """End after the look that is under way."""
        self.thread.stop()
        self.thread.join()

    def ask(self, gpu: str, read_back: Iterable[EntryKey] | None = None) -> None:
        """Have a GPU looked at soon. Waits for nothing.

        ``read_back`` are keys of entries whose slices were made or are gone, where nothing else was
        done and NVML has said so: that is done by :meth:`follow`.
        """
        if read_back is None:
            with self._lock:
                self._wanted[gpu] = None
            self.thread.notify()
            return
        with self._lock:
            self._read_back.setdefault(gpu, set()).update(read_back)
        self._on_read_back()

    def follow(self) -> None:
        """Publish what was read back; where that does not say all, ask for a look."""
        with self._lock:
            read_back, self._read_back = self._read_back, {}
        for gpu, keys in read_back.items():
            if not self._follow(gpu, keys):
                self.ask(gpu)

    @property
    def idle(self) -> bool:
        """True if no look is asked for or under way."""
        with self._lock:
            return not self._wanted and not self._read_back and not self._busy

    def run(self) -> None:
        """Take all looks that are asked for, except at GPUs on which somebody works."""
        with self._lock:
            wanted, self._wanted = self._wanted, {}
            self._busy = True
        worked_on: list[str] = []
        try:
            worked_on += (gpu for gpu in wanted if not self._look(gpu))
        finally:
            with self._lock:
                self._busy = False
                self._wanted |= dict.fromkeys(worked_on)

    def _turn(self) -> float | None:
        if self._wanted and not self.thread.gather(_GATHER_SECONDS):
            self.run()
        return _AGAIN_SECONDS if self._wanted else None
