"""Calls into the NVML library, any of which may never return, from many threads.

All calls are made within operations. An operation runs in a worker thread, and its caller stops
waiting when the deadline of one of its calls has passed. The worker thread is used again as soon as
the call returns. While a call for a GPU is overdue, no other operation is begun for that GPU: each
would block one more thread and one more caller. One caller at a time may have the library alone.
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
    """A call came back too late: nobody waits for its operation any more, which ends."""


@dataclass(eq=False, slots=True)
class Operation:
    """Calls for one GPU, one after another.

    ``name``, ``began``, ``until``: function, start and deadline of the latest call.
    ``waited``: time until which the operation's caller sleeps.
    ``abandoned``: a deadline has passed, and the caller does not wait any more.
    ``wake``: queue; an item in it has the caller look at the operation again.
    ``result``, ``error``: outcome of the work, set when the operation has ended.
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
    """Per thread: the operation that the thread runs, if any."""

    operation: Operation | None = None


class Calls:
    """Runs operations, whose calls have a deadline of ``seconds`` times a factor. Thread-safe.

    New operations wait while a caller wants the library :meth:`alone`; running ones finish first.

    Attributes:
        wanted: a caller wants the library alone, or has it alone: long operations are to end.
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
        """The operation that this thread runs; None if it runs none."""
        return self._mine.operation

    def run(self, name: str, work: Callable[[], T], *, factor: float = 1.0) -> T:
        """Make one call, ``work``, within the operation that this thread runs; returns its result.

        Raises:
            AbandonedError: nobody waits for the operation any more.
            Exception: as raised by the work.
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
        """Run ``work`` in another thread as one operation for a GPU; returns its result.

        The work makes its calls by :meth:`run`. Within an operation it becomes a part of that
        operation. When the deadline of one of its calls has passed, the operation ends with that
        call. ``alone``: the caller has the library alone.

        Raises:
            HangError: a call has not come back in its time, or an earlier call for the GPU has not.
            NvmlError: another caller has had the library alone for too long.
            Exception: as raised by the work.
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
        """Have the library alone; yields False if operations still run after ``seconds``.

        Abandoned operations count too. To be called by a thread that runs no operation, and by one
        thread at a time.
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
        """Text with the oldest overdue call for a GPU, waited for or not; empty if none is."""
        with self._changed:
            late = [o for o in self._running if o.gpu == gpu and self._is_late(o)]
        return self._words(min(late, key=lambda o: o.began)) if late else ""

    def overdue(self) -> bool:
        """True if any call has not come back in its time."""
        with self._changed:
            return any(map(self._is_late, self._running))

    def inside(self) -> tuple[str, ...]:
        """Texts with the calls that are inside NVML now, waited for or not."""
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
            del operation  # else an error, which keeps this frame, would keep the operation too

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
