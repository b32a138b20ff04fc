"""A readers-writer lock on the library: many threads use it, one may have it alone.

Whoever wants it alone comes before new users; those inside finish, nested uses included.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.01


class _Mine(threading.local):
    """Uses of one thread, each within the other."""

    depth = 0


class UseLock:
    """``busy`` tells of calls that nobody waits for any more and that are inside all the same."""

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        self._busy = busy
        self._changed = threading.Condition()
        self._users = 0
        self._wanted = False
        self._mine = _Mine()

    @property
    def wanted(self) -> bool:
        """True if somebody waits to have it alone, or has it: long uses are to end."""
        return self._wanted

    @property
    def inside(self) -> bool:
        """True if this thread uses it, or has it alone."""
        return self._mine.depth > 0

    @contextmanager
    def shared(self, seconds: float) -> Iterator[bool]:
        """Use it; False if within ``seconds`` whoever has it alone has not left it.

        A thread that uses it already, or has it alone, goes in at once.
        """
        depth = self._mine.depth
        if depth == 0:
            with self._changed:
                entered = not self._wanted or self._changed.wait_for(
                    lambda: not self._wanted, timeout=seconds
                )
                self._users += entered
            if not entered:
                yield False
                return
        self._mine.depth = depth + 1
        try:
            yield True
        finally:
            self._mine.depth = depth
            if depth == 0:
                with self._changed:
                    self._users -= 1
                    if self._wanted:
                        self._changed.notify_all()

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """This thread works for one that uses it, and waits for this one."""
        before = self._mine.depth
        self._mine.depth = before + 1
        try:
            yield
        finally:
            self._mine.depth = before

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Have it alone; False if within ``seconds`` not everybody has left it.

        For a thread that does not use it; one at a time.
        """
        end = time.monotonic() + seconds
        with self._changed:
            self._wanted = True
            free = self._changed.wait_for(lambda: not self._users, timeout=seconds)
        try:
            while free and self._busy() and time.monotonic() < end:
                time.sleep(_LOOK_SECONDS)
            self._mine.depth = 1
            yield free and not self._busy()
        finally:
            self._mine.depth = 0
            with self._changed:
                self._wanted = False
                self._changed.notify_all()
