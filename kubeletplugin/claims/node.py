"""The node's answers to kubelet, the same for every version of its protocol: prepare and unprepare.

Only here a claim's work gets its deadline, and errors get the claim's name. One piece of work runs
at a time for a claim; a second call for the same work waits for the one under way. The work runs in
a thread of a pool and is never cancelled: after its deadline the caller leaves, the work goes on,
and kubelet's next call for the claim finds the work under way or done.
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

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.holders import Holders
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.claims.prepare import Prepared, Preparer
from kubeletplugin.claims.rebuild import Rebuild
from kubeletplugin.claims.removal import ClaimRemoval
from kubeletplugin.common import Common
from kubeletplugin.errors import DeadlineError, HardwareError, PluginError, StartingError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.telemetry.observer import Action, Operation, Served, about, device
from kubeletplugin.times import RPC_SECONDS, START_SECONDS, UNPREPARE_SECONDS

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer for one claim: ``devices``, or an ``error`` text with the exception ``cause``."""

    devices: tuple[Prepared, ...] = ()
    error: str = ""
    cause: Exception | None = None


class Node:
    """Prepares and unprepares claims. Thread-safe; failures are returned in the answers."""

    def __init__(  # noqa: PLR0913 - the parts that serve a claim
        self,
        common: Common,
        preparer: Preparer,
        removal: ClaimRemoval,
        tasks: ClaimTasks,
        *,
        rebuild: Rebuild,
        outcomes: Outcomes,
        holders: Holders,
    ) -> None:
        self.preparer = preparer
        self.removal = removal
        self.tasks = tasks
        self.rebuild = rebuild
        self.outcomes = outcomes
        self.unprepared: set[str] = set()
        """UIDs of claims that kubelet has unprepared, and whose devices somebody still uses."""
        self._holders = holders
        self._reports = common.reports
        self._journal = common.journal
        self._readiness = common.readiness
        self._observer = common.telemetry.metrics

    def deadline(self) -> float:
        """Monotonic time by which a call that begins now has to be answered."""
        return time.monotonic() + RPC_SECONDS

    def prepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodePrepareResources for one claim."""

        def work() -> tuple[Prepared, ...]:
            self._readiness.wait_ready(min(START_SECONDS, max(0.0, deadline - time.monotonic())))
            if self._journal.rebuild:
                self.rebuild.run(about=ref)
            before = self._journal.of_claim(ref.uid)
            devices = self.preparer.prepare(ref)
            self.unprepared.discard(ref.uid)
            if before and all(e.early for e in before):
                self._observer.acted(Action.MET)
            self.outcomes.prepared(ref)
            return devices

        answer = self._serve(ref, Operation.PREPARE, work, deadline)
        if isinstance(answer.cause, PluginError):
            self.outcomes.failed(ref, answer.cause)
        return answer

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodeUnprepareResources for one claim; it works without the API server and the claim."""

        def work() -> tuple[Prepared, ...]:
            if self.release(ref):
                self.unprepared.add(ref.uid)
            return ()

        return self._serve(ref, Operation.UNPREPARE, work, deadline)

    def release(self, ref: ClaimRef, fate: ClaimFate | None = None) -> bool:
        """Remove all devices of a claim from the node; those that cannot be removed go later.

        ``fate``: see :meth:`Holders.of`. Returns True if all stays, as somebody still uses the
        devices. The caller makes sure that nothing else works on the claim.

        Raises:
            StartingError: the GPUs are not known yet, or a lost journal may hide devices of the
                claim.
            HardwareError: a device is left, and the journal could not record that it is to go.
        """
        known = self._journal.of_claim(ref.uid)
        if any(e.placement is not None for e in known):
            self._readiness.wait_ready(START_SECONDS)
        if not known and self.removal.has_spec(ref.uid):
            # The CDI spec shows that it was prepared; its entries may be lost with the journal.
            self.rebuild.run(about=ref)
            if self.rebuild.may_miss(ref.uid):
                raise StartingError(
                    "the journal was lost, and what it said of this claim is not found again yet, "
                    "as the API server or a GPU does not answer; it is tried again"
                )
        known = self._journal.of_claim(ref.uid)
        boot_id = self.removal.hardware.boot_id  # no container outlives its boot
        may_be_used = any(e.kubelet_knows and e.boot_id == boot_id for e in known)
        if may_be_used and (why := self._holders.of(ref, fate)):
            _log.warning("kept", extra=about(ref, reason=why))
            message = f"the claim's devices are kept from others: {why}"
            self._reports.report_claim(ref, NodeReason.IN_USE, message, warning=True)
            return True
        self.unprepared.discard(ref.uid)
        left = self.removal.remove_all(ref.uid, patience=UNPREPARE_SECONDS, keep_idle=True)
        if left.failed:
            raise HardwareError(str(left))
        if known:
            self.outcomes.statuses.clear(ref)
        return False

    def _serve(
        self,
        ref: ClaimRef,
        operation: Operation,
        work: Callable[[], tuple[Prepared, ...]],
        deadline: float,
    ) -> ClaimAnswer:
        """Run ``work`` as the claim's only task, measure and log it; returns its answer."""
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
            self.outcomes.forget(ref)
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
        """Run ``work`` for a claim, or join the work called ``name`` that is under way for it.

        Work of another name for the claim is waited for first. ``deadline``: a time of the clock.
        Returns the result of the work.

        Raises:
            DeadlineError: the deadline has passed; work that has begun goes on.
            Exception: raised by the work.
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
                    f"{under_way} is still under way, probably because the GPU, the API server or "
                    "an MPS daemon answers slowly; it goes on, and a repeated call joins it"
                ) from None
            if under_way == name:
                result: T = future.result()
                return result

    def begin(self, uid: str, name: str, work: Callable[[], T]) -> Future[T] | None:
        """Start ``work`` without waiting for it; None if other work is under way for the claim.

        Once the future is done, the claim is free for other work.
        """
        with self._lock:
            return None if uid in self._running else self._start(uid, name, work)

    def idle(self, uid: str) -> bool:
        """True if no work is under way for the claim."""
        with self._lock:
            return uid not in self._running

    def wait_idle(self, timeout: float) -> bool:
        """Wait until all work under way now has ended; False after ``timeout`` seconds."""
        with self._lock:
            futures = [future for _, future in self._running.values()]
        _, left = wait_futures(futures, timeout=timeout)
        return not left

    def stop(self) -> None:
        """End the threads: idle ones now, the others after their work."""
        with self._lock:
            self._stopped = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.put(None)

    def _start(self, uid: str, name: str, work: Callable[[], T]) -> Future[T]:
        """Start the work in an idle thread, or in a new one; the lock is held."""
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
        # Called before the future is done: a thread that waits for it must not find this work.
        with self._lock:
            del self._running[uid]
            if self._stopped:
                thread.put(None)
            else:
                self._idle.append(thread)


_Thread = queue.SimpleQueue[Callable[[Any], None] | None]
"""Queue of the work for one thread; None ends the thread."""


def _run(thread: _Thread) -> None:
    while (work := thread.get()) is not None:
        work(thread)
