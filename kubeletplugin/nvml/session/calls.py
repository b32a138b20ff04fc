"""Calls that may never come back, each in a thread that can be left waiting.

Threads are used again; one is lost only for as long as its call hangs. While a call for a GPU has
not come back in its time, no other is begun there: each would cost one more thread, and as long.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from kubeletplugin.nvml.errors import HangError

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Call:
    name: str
    work: Callable[[], Any]
    gpu: str
    began: float
    since: str
    future: Future[Any] = field(default_factory=Future)


class CallPool:
    """Runs calls with a deadline of ``seconds`` times the factor. Thread-safe."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._running: set[_Call] = set()
        self._abandoned: dict[str, _Call] = {}
        self._idle: list[queue.SimpleQueue[_Call]] = []

    def run(self, name: str, work: Callable[[], T], *, gpu: str, factor: float = 1.0) -> T:
        """The result of ``work``.

        Raises:
            HangError: it has not come back in its time, or an earlier one for the GPU has not.
            Exception: whatever the work raised.
        """
        since = datetime.now(UTC).strftime("%H:%M:%S")
        call = _Call(name, work, gpu, self._clock(), since)
        with self._lock:
            hanging = self._abandoned.get(gpu)
            if hanging is not None:
                raise _error(hanging)
            self._running.add(call)
            thread = self._idle.pop() if self._idle else None
        if thread is None:
            thread = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(thread,), name="NVML", daemon=True).start()
        thread.put(call)
        try:
            result: T = call.future.result(timeout=self._seconds * factor)
        except FutureTimeoutError:
            with self._lock:
                if call in self._running:
                    self._abandoned.setdefault(gpu, call)
                    raise _error(call) from None
            return call.future.result()  # type: ignore[no-any-return]  # just now
        return result

    def hangs(self, gpu: str) -> str:
        """The call for a GPU that is overdue, in words; also one that is still waited for."""
        now = self._clock()
        with self._lock:
            calls = [c for c in self._running if c.gpu == gpu and now - c.began >= self._seconds]
            oldest = self._abandoned.get(gpu) or min(calls, key=lambda c: c.began, default=None)
        return _words(oldest) if oldest else ""

    def overdue(self) -> bool:
        """Whether any call has not come back in its time."""
        now = self._clock()
        with self._lock:
            return any(now - c.began >= self._seconds for c in self._running)

    def inside(self) -> tuple[str, ...]:
        """The calls that are inside NVML now, in words; also those that nobody waits for."""
        with self._lock:
            return tuple(sorted(f"{c.name} since {c.since} UTC" for c in self._running))

    def _work(self, mine: queue.SimpleQueue[_Call]) -> None:
        while True:
            call = mine.get()
            try:
                result = call.work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                self._done(call, mine)
                call.future.set_exception(error)
            else:
                self._done(call, mine)
                call.future.set_result(result)
            del call

    def _done(self, call: _Call, mine: queue.SimpleQueue[_Call]) -> None:
        with self._lock:
            self._running.discard(call)
            if self._abandoned.get(call.gpu) is call:
                del self._abandoned[call.gpu]
                others = [c for c in self._running if c.gpu == call.gpu]
                overdue = [c for c in others if self._clock() - c.began >= self._seconds * 6]
                if overdue:
                    self._abandoned[call.gpu] = overdue[0]
            self._idle.append(mine)


def _words(call: _Call) -> str:
    return f"NVML call {call.name} hangs since {call.since} UTC"


def _error(call: _Call) -> HangError:
    return HangError(call.name, gpu=call.gpu, detail=f"{_words(call)}; reboot the node if it stays")
