"""Lock that is handed on in the order in which it was asked for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self


class FifoLock:
    """First come, first served: a stream of new callers cannot starve one that waits.

    ``on_wait`` hears the seconds that a caller waited who did not get it at once.
    """

    def __init__(self, on_wait: Callable[[float], None] = lambda _: None) -> None:
        self._on_wait = on_wait
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    @property
    def is_held(self) -> bool:
        """True if somebody has it now."""
        return self._held

    def __enter__(self) -> Self:
        with self._lock:
            if not self._held:
                self._held = True
                return self
            turn = threading.Event()
            self._waiting.append(turn)
        began = time.monotonic()
        turn.wait()
        self._on_wait(time.monotonic() - began)
        return self

    def enter(self, timeout: float) -> bool:
        """Take the lock within ``timeout`` seconds; whoever gets True calls ``leave``."""
        with self._lock:
            if not self._held:
                self._held = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        began = time.monotonic()
        got = turn.wait(max(0.0, timeout))
        self._on_wait(time.monotonic() - began)
        if got:
            return True
        with self._lock:
            if turn.is_set():
                return True  # handed over at the last moment
            self._waiting.remove(turn)
            return False

    def try_enter(self) -> bool:
        """Take the lock if nobody holds it; whoever gets True calls ``leave``."""
        with self._lock:
            taken = not self._held
            self._held = True
            return taken

    def leave(self) -> None:
        """Hand the lock to whoever has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._held = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
