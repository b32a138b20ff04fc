"""Work on claims: one task a claim at a time, and attempts repeated while they fail in passing.

A caller that asks for a running task joins it. Work runs in another thread, which is used again,
and is never abandoned: a caller whose time is up leaves, the work goes on, and kubelet's next call
for the claim finds it under way or done.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from typing import Any, TypeVar

from dra.kube.timing import Backoff, Clock
from kubeletplugin.errors import DeadlineError, PluginError
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.times import RETRY_SECONDS

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ClaimTasks:
    """Runs named work by claim UID. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, tuple[str, Future[Any]]] = {}
        self._idle: list[_Thread] = []
        self._stopped = False

    def run(self, uid: str, name: str, work: Callable[[], T], *, deadline: float) -> T:
        """The result of ``work``, or of the work of that name that is under way for the claim.

        Other work for the claim is waited for first. ``deadline`` is a time of the clock.

        Raises:
            DeadlineError: the time is up; the work goes on.
            Exception: whatever the work raised.
        """
        while True:
            left = deadline - self._clock()
            with self._lock:
                running = self._running.get(uid)
                if running is None:
                    if left <= 0:
                        raise DeadlineError("there was no time left to begin; it is tried again")
                    running = (name, self._start(uid, name, work))
            under_way, future = running
            try:
                future.exception(timeout=max(0.0, left))
            except TimeoutError:
                raise DeadlineError(
                    f"{under_way} is still under way, probably because the GPU or the API server "
                    "answers slowly; it goes on, and a repeated call joins it"
                ) from None
            if under_way == name:
                result: T = future.result()
                return result

    def begin(self, uid: str, name: str, work: Callable[[], T]) -> Future[T] | None:
        """Start ``work``, and wait for nothing; None if something is under way for the claim.

        Once the future is done nothing is under way for the claim, but for what was begun since.
        """
        with self._lock:
            return None if uid in self._running else self._start(uid, name, work)

    def idle(self, uid: str) -> bool:
        """True if nothing is under way for the claim."""
        with self._lock:
            return uid not in self._running

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no work is left; False when the time was not enough."""
        with self._lock:
            futures = [future for _, future in self._running.values()]
        _, left = wait_futures(futures, timeout=timeout)
        return not left

    def stop(self) -> None:
        """End the threads: those that wait for work now, the others with their work."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.put(None)

    def _start(self, uid: str, name: str, work: Callable[[], T]) -> Future[T]:
        """Begin the work in a thread that waits for some, else in a new one; with the lock."""
        future: Future[T] = Future()

        def body(thread: _Thread) -> None:
            threading.current_thread().name = f"{name} {uid}"
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                self._forget(uid, thread)
                future.set_exception(error)
            else:
                self._forget(uid, thread)
                future.set_result(result)

        self._running[uid] = (name, future)
        if self._idle:
            self._idle.pop().put(body)
        else:
            thread: _Thread = queue.SimpleQueue()
            thread.put(body)
            threading.Thread(target=_run, args=(thread,), name="claims", daemon=True).start()
        return future

    def _forget(self, uid: str, thread: _Thread) -> None:
        # Before the future is done: whoever it wakes must not find this work again.
        with self._lock:
            del self._running[uid]
            if self._stopped:
                thread.put(None)
            else:
                self._idle.append(thread)


_Thread = queue.SimpleQueue[Callable[[Any], None] | None]
"""Work that a thread is to do next; None to end."""


def _run(thread: _Thread) -> None:
    while (work := thread.get()) is not None:
        work(thread)


def patiently(attempt: Callable[[], T], *, end: float, longest: float, clock: Clock) -> T:
    """The result of the first attempt that does not fail in passing.

    Pauses double up to ``longest`` seconds; no attempt begins after ``end``, a time of ``clock``.
    No lock may be held: others work meanwhile.

    Raises:
        PluginError, NvmlError: the failure does not pass, or there is no time left.
    """
    backoff = Backoff(first=RETRY_SECONDS, limit=longest, jitter=0.0)
    while True:
        delay = backoff.next_delay()
        try:
            return attempt()
        except (PluginError, NvmlError) as error:
            if not error.passing or clock.monotonic() + delay > end:
                raise
            _log.info("tried again: %s", error)
        clock.sleep(delay)
