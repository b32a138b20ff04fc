"""Calls into the NVML library from many threads: any may never come back, one may have it alone.

Calls run in threads that can be left waiting. Threads are used again; one is lost only for as long
as its call hangs. Calls that are one operation share one thread, and each has its own deadline.
While a call for a GPU has not come back in its time, no other is begun there: each would cost one
more thread, and as long.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from kubeletplugin import times
from kubeletplugin.nvml.errors import HangError

T = TypeVar("T")


class AbandonedError(Exception):
    """Nobody waits for this operation any more: its call came back too late, and it ends."""


@dataclass(eq=False, slots=True)
class _Call:
    """One call, or the one of an operation's calls that is the latest; ``until`` is its deadline.

    Of an operation ``waited`` is the time until which its caller sleeps. Whatever is put into
    ``wake`` has the caller look again; ``result`` or ``error`` is there once it runs no more.
    """

    name: str
    work: Callable[[], Any]
    gpu: str
    began: float
    until: float
    waited: float = 0.0
    abandoned: bool = False
    wake: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    result: Any = None
    error: BaseException | None = None


class _Mine(threading.local):
    """The call or operation that one thread runs, and its uses of the library."""

    call: _Call | None = None
    depth = 0


class CallPool:
    """Runs calls with a deadline of ``seconds`` times the factor. Thread-safe."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[_Call] = set()
        self._idle: list[queue.SimpleQueue[_Call]] = []
        self._mine = _Mine()

    def run(self, name: str, work: Callable[[], T], *, gpu: str, factor: float = 1.0) -> T:
        """The result of ``work``, which is one call.

        Raises:
            HangError: it has not come back in its time, or an earlier one for the GPU has not.
            AbandonedError: within an operation for which nobody waits any more.
            Exception: whatever the work raised.
        """
        operation = self._mine.call
        if operation is None:
            return self._elsewhere(name, work, gpu=gpu, factor=factor)
        began = self._clock()
        with self._lock:
            if operation.abandoned:
                raise AbandonedError(operation.name)
            operation.name, operation.began = name, began
            operation.until = began + self._seconds * factor
            early = operation.until < operation.waited
        if early:
            operation.wake.put(None)
        try:
            return work()
        finally:
            if operation.abandoned:
                raise AbandonedError(operation.name) from None

    def together(self, work: Callable[[], T], *, gpu: str) -> T:
        """The result of ``work``, whose calls of ``run`` for that GPU are one operation.

        It runs in another thread. Each of its calls has its own deadline; when one has passed, the
        work goes on no further than that call.

        Raises:
            HangError: a call has not come back in its time, or an earlier one for the GPU has not.
            Exception: whatever the work raised.
        """
        if self.in_operation:
            return work()
        return self._elsewhere("(between two calls)", work, gpu=gpu, factor=1.0)

    @property
    def in_operation(self) -> bool:
        """True in a thread that runs an operation, or one call."""
        return self._mine.call is not None

    def hangs(self, gpu: str) -> str:
        """The call for a GPU that is overdue, in words; also one that is still waited for."""
        with self._lock:
            late = [c for c in self._running if c.gpu == gpu and self._is_late(c)]
        return self._words(min(late, key=lambda c: c.began)) if late else ""

    def overdue(self) -> bool:
        """True if any call has not come back in its time."""
        with self._lock:
            return any(map(self._is_late, self._running))

    def inside(self) -> tuple[str, ...]:
        """The calls that are inside NVML now, in words; also those that nobody waits for."""
        with self._lock:
            return tuple(sorted(f"{c.name} since {self._since(c)}" for c in self._running))

    def _is_late(self, call: _Call) -> bool:
        return call.abandoned or self._clock() - call.began >= self._seconds

    def _elsewhere(self, name: str, work: Callable[[], T], *, gpu: str, factor: float) -> T:
        began = self._clock()
        call = _Call(name, work, gpu, began, began + self._seconds * factor)
        with self._lock:
            for other in self._running:
                if other.gpu == gpu and other.abandoned:
                    raise self._error(other)
            self._running.add(call)
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(thread,), name="NVML", daemon=True).start()
        thread.put(call)
        return self._awaited(call)  # type: ignore[no-any-return]

    def _awaited(self, call: _Call) -> Any:
        while True:
            with self._lock:
                left = call.until - self._clock()
                call.waited = call.until
                is_running = call in self._running
                if is_running and left <= 0:
                    call.abandoned = True
                    raise self._error(call)
            if not is_running:
                break
            with contextlib.suppress(queue.Empty):
                call.wake.get(timeout=left)
        try:
            if call.error is not None:
                raise call.error
            return call.result
        finally:
            del call  # an error keeps this frame

    def _work(self, mine: queue.SimpleQueue[_Call]) -> None:
        while True:
            call = self._mine.call = mine.get()
            try:
                call.result = call.work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                call.error = error
            with self._lock:
                self._running.discard(call)
                self._idle.append(mine)
            call.wake.put(None)
            del call
            self._mine.call = None

    def _since(self, call: _Call) -> str:
        began = datetime.now(UTC) - timedelta(seconds=self._clock() - call.began)
        return f"{began:%H:%M:%S} UTC"

    def _words(self, call: _Call) -> str:
        return f"NVML call {call.name} hangs since {self._since(call)}"

    def _error(self, call: _Call) -> HangError:
        detail = f"{self._words(call)}; reboot the node if it stays"
        return HangError(call.name, gpu=call.gpu, detail=detail)


class UseLock:
    """A readers-writer lock on the library: many threads use it, one may have it alone.

    Whoever wants it alone comes before new users; those inside finish, nested uses included.
    ``busy`` tells of calls that nobody waits for any more and that are inside all the same.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
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
        first = not self.inside
        if first:
            with self._changed:
                entered = self._changed.wait_for(lambda: not self._wanted, timeout=seconds)
                self._users += entered
            if not entered:
                yield False
                return
        self._mine.depth += 1
        try:
            yield True
        finally:
            self._mine.depth -= 1
            if first:
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Have it alone; False if within ``seconds`` not everybody has left it.

        For a thread that does not use it; one at a time.
        """
        end = time.monotonic() + seconds
        with self._changed:
            self._wanted = True
            free = self._changed.wait_for(lambda: not self._users, timeout=seconds)
        self._mine.depth += 1
        try:
            while free and self._busy() and time.monotonic() < end:
                time.sleep(times.NVML_ALONE_SECONDS)
            yield free and not self._busy()
        finally:
            self._mine.depth -= 1
            with self._changed:
                self._wanted = False
                self._changed.notify_all()
