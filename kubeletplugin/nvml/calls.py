"""Calls into the NVML library from many threads: any may never come back, one may have it alone.

All calls are made within operations, which run in threads that can be left waiting. Threads are
used again; one is lost only for as long as its call hangs. Each call has its own deadline. While a
call for a GPU has not come back in its time, no other operation is begun there: each would cost one
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

import pynvml

from kubeletplugin.nvml.errors import HangError, NvmlError

T = TypeVar("T")


class AbandonedError(Exception):
    """Nobody waits for this operation any more: its call came back too late, and it ends."""


@dataclass(eq=False, slots=True)
class Operation:
    """Calls for one GPU, one after another; ``name``, ``began`` and ``until`` are the latest's.

    ``until`` is its deadline, ``waited`` the time until which the operation's caller sleeps.
    Whatever is put into ``wake`` has the caller look again; ``result`` or ``error`` is there once
    the operation has ended.
    """

    work: Callable[[], Any]
    gpu: str
    began: float
    until: float
    name: str = "(between two calls)"
    waited: float = 0.0
    abandoned: bool = False
    wake: queue.SimpleQueue[None] = field(default_factory=queue.SimpleQueue)
    result: Any = None
    error: BaseException | None = None


class _Mine(threading.local):
    """The operation that one thread runs."""

    operation: Operation | None = None


class Calls:
    """Runs operations, whose calls have a deadline of ``seconds`` times a factor. Thread-safe.

    Whoever wants the library :meth:`alone` comes before new operations; those that run finish.

    Attributes:
        wanted: somebody waits to have the library alone, or has it: long operations are to end.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._running: set[Operation] = set()
        self._idle: list[queue.SimpleQueue[Operation]] = []
        self._mine = _Mine()
        self.wanted = False

    @property
    def current(self) -> Operation | None:
        """The operation that this thread runs."""
        return self._mine.operation

    def run(self, name: str, work: Callable[[], T], *, factor: float = 1.0) -> T:
        """The result of ``work``, which is one call; within an operation.

        Raises:
            AbandonedError: nobody waits for the operation any more.
            Exception: whatever the work raised.
        """
        operation = self._mine.operation
        if operation is None:
            raise RuntimeError(f"{name} is called outside of an operation")
        began = self._clock()
        with self._changed:
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

    def operate(self, work: Callable[[], T], *, gpu: str, alone: bool = False) -> T:
        """The result of ``work``, whose calls of :meth:`run` are one operation for a GPU.

        It runs in another thread; within an operation it is part of that. When the deadline of one
        of its calls has passed, it goes on no further than that call. ``alone`` is for whoever has
        the library alone.

        Raises:
            HangError: a call has not come back in its time, or an earlier one for the GPU has not.
            NvmlError: somebody has the library alone, and that lasts.
            Exception: whatever the work raised.
        """
        if self._mine.operation is not None:
            return work()
        with self._changed:
            if not alone and not self._changed.wait_for(lambda: not self.wanted, self._seconds):
                detail = "NVML is being opened anew"
                raise NvmlError("nvmlInit", pynvml.NVML_ERROR_NOT_READY, detail=detail)
            for other in self._running:
                if other.gpu == gpu and other.abandoned:
                    raise self._error(other)
            began = self._clock()
            operation = Operation(work, gpu, began, began + self._seconds)
            self._running.add(operation)
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(thread,), name="NVML", daemon=True).start()
        thread.put(operation)
        return self._awaited(operation)  # type: ignore[no-any-return]

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Have the library alone; False if within ``seconds`` not all operations have ended.

        Those that nobody waits for any more count too. For a thread that runs none; one at a time.
        """
        with self._changed:
            self.wanted = True
            free = self._changed.wait_for(lambda: not self._running, timeout=seconds)
        try:
            yield free
        finally:
            with self._changed:
                self.wanted = False
                self._changed.notify_all()

    def hangs(self, gpu: str) -> str:
        """The call for a GPU that is overdue, in words; also one that is still waited for."""
        with self._changed:
            late = [o for o in self._running if o.gpu == gpu and self._is_late(o)]
        return self._words(min(late, key=lambda o: o.began)) if late else ""

    def overdue(self) -> bool:
        """True if any call has not come back in its time."""
        with self._changed:
            return any(map(self._is_late, self._running))

    def inside(self) -> tuple[str, ...]:
        """The calls that are inside NVML now, in words; also those that nobody waits for."""
        with self._changed:
            return tuple(sorted(f"{o.name} since {self._since(o)}" for o in self._running))

    def _is_late(self, operation: Operation) -> bool:
        return operation.abandoned or self._clock() - operation.began >= self._seconds

    def _awaited(self, operation: Operation) -> Any:
        while True:
            with self._changed:
                left = operation.until - self._clock()
                operation.waited = operation.until
                is_running = operation in self._running
                if is_running and left <= 0:
                    operation.abandoned = True
                    raise self._error(operation)
            if not is_running:
                break
            with contextlib.suppress(queue.Empty):
                operation.wake.get(timeout=left)
        try:
            if operation.error is not None:
                raise operation.error
            return operation.result
        finally:
            del operation  # an error keeps this frame

    def _work(self, mine: queue.SimpleQueue[Operation]) -> None:
        while True:
            operation = self._mine.operation = mine.get()
            try:
                operation.result = operation.work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                operation.error = error
            with self._changed:
                self._running.discard(operation)
                self._idle.append(mine)
                self._changed.notify_all()
            operation.wake.put(None)
            del operation
            self._mine.operation = None

    def _since(self, operation: Operation) -> str:
        began = datetime.now(UTC) - timedelta(seconds=self._clock() - operation.began)
        return f"{began:%H:%M:%S} UTC"

    def _words(self, operation: Operation) -> str:
        return f"NVML call {operation.name} hangs since {self._since(operation)}"

    def _error(self, operation: Operation) -> HangError:
        detail = f"{self._words(operation)}; reboot the node if it stays"
        return HangError(operation.name, gpu=operation.gpu, detail=detail)
