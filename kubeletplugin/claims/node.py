"""The node's answers to kubelet, the same for every version of its protocol: prepare and unprepare.

The only place where a claim's work gets its deadline and its errors their context.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.ending.release import Release
from kubeletplugin.claims.prepare.prepare import Prepared, Preparer
from kubeletplugin.claims.recovery.rebuild import Rebuild
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.telemetry.logfields import about, device
from kubeletplugin.telemetry.observer import Action, NodeObserver, Operation, Served
from kubeletplugin.telemetry.readiness import Readiness
from kubeletplugin.times import RPC_SECONDS, START_SECONDS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The answer for one claim: devices, or why not. ``cause``: what ``error`` came from."""

    devices: tuple[Prepared, ...] = ()
    error: str = ""
    cause: Exception | None = None


class Node:
    """Prepares and unprepares claims. Thread-safe; what goes wrong with a claim is its ClaimAnswer.

    ``settled`` hears of every Prepare that is over, with the error if it failed; it is called
    without locks, in a thread of the claim or of kubelet's call. ``answered`` hears of the claims
    for which kubelet got what it asked for, without locks, in a thread of kubelet's call.
    """

    def __init__(  # noqa: PLR0913 - the parts that serve a claim
        self,
        *,
        readiness: Readiness,
        journal: Journal,
        preparer: Preparer,
        release: Release,
        tasks: ClaimTasks,
        statuses: ClaimStatuses,
        rebuild: Rebuild,
        settled: Callable[[ClaimRef, PluginError | None], None] = lambda _ref, _error: None,
        answered: Callable[[ClaimRef], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        observer: NodeObserver | None = None,
    ) -> None:
        self._observer = observer or NodeObserver()
        self._readiness = readiness
        self._journal = journal
        self._preparer = preparer
        self._release = release
        self._tasks = tasks
        self._statuses = statuses
        self._rebuild = rebuild
        self._settled = settled
        self._answered = answered
        self._clock = clock

    def deadline(self) -> float:
        """Time by which a call that begins now has to be answered."""
        return self._clock() + RPC_SECONDS

    def prepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodePrepareResources for one claim."""
        work = partial(self._prepare, ref, deadline)
        answer = self._serve(ref, Operation.PREPARE, work, deadline)
        if isinstance(answer.cause, PluginError):
            self._settled(ref, answer.cause)
        elif answer.cause is None:
            self._answered(ref)
        return answer

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> ClaimAnswer:
        """NodeUnprepareResources for one claim; needs no API server, and no claim."""
        answer = self._serve(ref, Operation.UNPREPARE, partial(self._unprepare, ref), deadline)
        if answer.cause is None:
            self._answered(ref)
        return answer

    def _prepare(self, ref: ClaimRef, deadline: float) -> tuple[Prepared, ...]:
        self._readiness.wait_ready(min(START_SECONDS, max(0.0, deadline - self._clock())))
        self._rebuild.run(about=ref)
        before = self._journal.of_claim(ref.uid)
        devices = self._preparer.prepare(ref)
        if before and all(e.early for e in before):
            self._observer.acted(Action.MET)
        self._statuses.show_devices(ref, self._journal.of_claim(ref.uid))
        self._settled(ref, None)
        return devices

    def _unprepare(self, ref: ClaimRef) -> tuple[Prepared, ...]:
        self._release.release(ref)
        return ()

    def _serve(
        self,
        ref: ClaimRef,
        operation: Operation,
        work: Callable[[], tuple[Prepared, ...]],
        deadline: float,
    ) -> ClaimAnswer:
        """The answer of ``work`` as the claim's only task; it is measured and logged."""
        began = self._clock()
        before = self._journal.of_claim(ref.uid)
        answer = self._answer(ref, operation, work, deadline)
        seconds = self._clock() - began
        after = self._journal.of_claim(ref.uid)
        self._observer.served(
            Served(
                ref,
                operation,
                seconds,
                entries=before or after,
                repeated=any(e.state in HELD for e in before),
                error=answer.cause,
            )
        )
        if answer.cause is not None:
            return answer
        if not _log.isEnabledFor(logging.INFO):
            return answer
        for entry in after or before:
            _log.info("%s done", operation, extra=device(entry, seconds=round(seconds, 3)))
        if not (before or after):
            _log.info("%s done: nothing was here", operation, extra=about(ref))
        return answer

    def _answer(
        self,
        ref: ClaimRef,
        operation: Operation,
        work: Callable[[], tuple[Prepared, ...]],
        deadline: float,
    ) -> ClaimAnswer:
        try:
            return ClaimAnswer(self._tasks.run(ref.uid, operation, work, deadline=deadline))
        except PluginError as error:
            _log.warning("%s failed", operation, extra=about(ref, error=str(error)))
            return ClaimAnswer(error=f"claim {ref} (UID {ref.uid}): {error}", cause=error)
        except Exception as error:  # noqa: BLE001 - told to kubelet; other claims are served
            _log.exception("%s failed", operation, extra=about(ref))
            text = f"claim {ref} (UID {ref.uid}): internal error (see the log): {error!r}"
            return ClaimAnswer(error=text, cause=error)
