"""The node's answers to kubelet, the same for every version of its protocol: prepare and unprepare.

The only place where a claim's work gets its deadline and its errors their context. One piece of
work a claim runs at a time, and whoever asks for what runs already joins it. It runs in another
thread, which is used again, and is never abandoned: a caller whose time is up leaves, the work goes
on, and kubelet's next call for the claim finds it under way or done.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_futures
from dataclasses import dataclass
from typing import Any, TypeVar

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.claims.prepare import Prepared, Preparer
from kubeletplugin.claims.rebuild import Rebuild
from kubeletplugin.claims.removal import ClaimRemoval
from kubeletplugin.common import Common
from kubeletplugin.errors import DeadlineError, HardwareError, PluginError, StartingError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.telemetry.observer import Action, Operation, Served
from kubeletplugin.telemetry.reports import about, device
from kubeletplugin.times import RPC_SECONDS, START_SECONDS, UNPREPARE_SECONDS

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer for one claim: devices, or why not. ``cause``: what ``error`` came from."""

    devices: tuple[Prepared, ...] = ()
    error: str = ""
    cause: Exception | None = None


class Node:
    """Prepares and unprepares claims. Thread-safe; what goes wrong with a claim is its answer."""

    def __init__(  # noqa: PLR0913 - the parts that serve a claim
        self,
        common: Common,
        preparer: Preparer,
        removal: ClaimRemoval,
        tasks: ClaimTasks,
        *,
        rebuild: Rebuild,
        outcomes: Outcomes,
    ) -> None:
        self.preparer = preparer
        self.removal = removal
        self.tasks = tasks
        self.rebuild = rebuild
        self.outcomes = outcomes
        self._journal = common.journal
        self._readiness = common.readiness
        self._observer = common.telemetry.metrics

    def deadline(self) -> float:
        """Time by which a call that begins now has to be answered."""
        return time.monotonic() + RPC_SECONDS

    def prepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodePrepareResources for one claim."""

        def work() -> tuple[Prepared, ...]:
            self._readiness.wait_ready(min(START_SECONDS, max(0.0, deadline - time.monotonic())))
            if self._journal.rebuild:
                self.rebuild.run(about=ref)
            before = self._journal.of_claim(ref.uid)
            devices = self.preparer.prepare(ref)
            if before and all(e.early for e in before):
                self._observer.acted(Action.MET)
            self.outcomes.prepared(ref)
            return devices

        answer = self._serve(ref, Operation.PREPARE, work, deadline)
        if isinstance(answer.cause, PluginError):
            self.outcomes.failed(ref, answer.cause)
        return answer

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodeUnprepareResources for one claim; needs no API server, and no claim."""

        def work() -> tuple[Prepared, ...]:
            self.release(ref)
            return ()

        return self._serve(ref, Operation.UNPREPARE, work, deadline)

    def release(self, ref: ClaimRef) -> None:
        """Take everything of a claim off the node; what is left is unavailable and goes later.

        Nothing else works on the claim.

        Raises:
            StartingError: the GPUs cannot be asked yet, or it cannot be told yet whether anything
                of the claim is there.
            HardwareError: something is left of which there is no record that it is to go.
        """
        known = self._journal.of_claim(ref.uid)
        if any(e.placement is not None for e in known):
            self._readiness.wait_ready(START_SECONDS)
        if not known and self.removal.has_spec(ref.uid):
            # It was prepared here by its CDI spec; a lost journal may hide with what.
            self.rebuild.run(about=ref)
            if self.rebuild.may_miss(ref.uid):
                raise StartingError(
                    "the journal was lost, and what it said of this claim is not found again yet, "
                    "as the API server or a GPU does not answer; it is tried again"
                )
        known = self._journal.of_claim(ref.uid)
        left = self.removal.remove_all(ref.uid, patience=UNPREPARE_SECONDS, keep_idle=True)
        if left.failed:
            raise HardwareError(str(left))
        if known:
            self.outcomes.released(ref)

    def _serve(
        self,
        ref: ClaimRef,
        operation: Operation,
        work: Callable[[], tuple[Prepared, ...]],
        deadline: float,
    ) -> ClaimAnswer:
        """The answer of ``work`` as the claim's only task; it is measured and logged."""
        began = time.monotonic()
        before = self._journal.of_claim(ref.uid)
        try:
            answer = ClaimAnswer(self.tasks.run(ref.uid, operation, work, deadline=deadline))
        except PluginError as error:
            _log.warning("%s failed", operation, extra=about(ref, error=str(error)))
            answer = ClaimAnswer(error=f"claim {ref} (UID {ref.uid}): {error}", cause=error)
        except Exception as error:  # noqa: BLE001 - told to kubelet; other claims are served
            _log.exception("%s failed", operation, extra=about(ref))
            text = f"claim {ref} (UID {ref.uid}): internal error (see the log): {error!r}"
            answer = ClaimAnswer(error=text, cause=error)
        seconds = time.monotonic() - began
        after = self._journal.of_claim(ref.uid)
        repeated = any(e.state in HELD for e in before)
        entries = before or after
        self._observer.served(Served(ref, operation, seconds, entries, repeated, answer.cause))
        if answer.cause is None:
            self.outcomes.answered(ref)
            for entry in after or before:
                _log.info("%s done", operation, extra=device(entry, seconds=round(seconds, 3)))
            if not entries:
                _log.info("%s done: nothing was here", operation, extra=about(ref))
        return answer


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
