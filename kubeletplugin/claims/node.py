"""The node's answers to kubelet, the same for every version of its protocol: prepare and unprepare.

The only place where a claim's work gets its deadline and its errors their context.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.prepare.prepare import Prepared, Preparer
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.rebuild import Rebuild
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.errors import HardwareError, PluginError, StartingError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.readiness import Readiness
from kubeletplugin.telemetry.logfields import about, device
from kubeletplugin.telemetry.observer import Action, NodeObserver, Served

T = TypeVar("T")
_log = logging.getLogger(__name__)

RPC_SECONDS = 38.0
"""Kubelet gives a call 45 s."""
_START_SECONDS = 30.0
_UNPREPARE_PATIENCE = 8.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer for one claim: devices, or why not."""

    devices: tuple[Prepared, ...] = ()
    error: str = ""


class Node:
    """Prepares and unprepares claims. Thread-safe; what goes wrong with a claim is its Outcome."""

    def __init__(  # noqa: PLR0913 - the parts that serve a claim
        self,
        *,
        readiness: Readiness,
        journal: Journal,
        preparer: Preparer,
        rollback: Rollback,
        tasks: ClaimTasks,
        statuses: ClaimStatuses,
        recovery: Recovery,
        rebuild: Rebuild,
        settled: Callable[[ClaimRef, PluginError | None], None] = lambda _ref, _error: None,
        clock: Callable[[], float] = time.monotonic,
        observer: NodeObserver | None = None,
    ) -> None:
        self._observer = observer or NodeObserver()
        self._readiness = readiness
        self._journal = journal
        self._preparer = preparer
        self._rollback = rollback
        self._tasks = tasks
        self._statuses = statuses
        self._recovery = recovery
        self._rebuild = rebuild
        self._settled = settled
        self._clock = clock

    def deadline(self) -> float:
        """Time by which a call that begins now has to be answered."""
        return self._clock() + RPC_SECONDS

    def prepare(self, ref: ClaimRef, *, deadline: float) -> Outcome:
        """NodePrepareResources for one claim."""

        def work() -> tuple[Prepared, ...]:
            self._readiness.enter(min(_START_SECONDS, max(0.0, deadline - self._clock())))
            self._rebuild.run(about_claim=ref.uid)
            devices = self._preparer.prepare(ref)
            self._statuses.prepared(ref, self._journal.of_claim(ref.uid))
            self._settled(ref, None)
            return devices

        return self._run(
            ref, "prepare", lambda: Outcome(self._timed(ref, "prepare", work, deadline))
        )

    def unprepare(self, ref: ClaimRef, *, deadline: float) -> Outcome:
        """NodeUnprepareResources for one claim; needs no API server, and no claim."""

        def work() -> tuple[Prepared, ...]:
            self.release(ref)
            return ()

        return self._run(
            ref, "unprepare", lambda: Outcome(self._timed(ref, "unprepare", work, deadline))
        )

    def release(self, ref: ClaimRef) -> None:
        """Take everything of a claim off the node; what is left is withheld and goes later.

        Raises:
            StartingError: the GPUs cannot be asked yet, or it cannot be told yet whether anything
                of the claim is there.
            HardwareError: something is left of which there is no record that it is to go.
        """
        known = self._journal.of_claim(ref.uid)
        if any(e.placement is not None for e in known):
            self._readiness.enter(_START_SECONDS)
        if not known and self._forgotten(ref):
            raise StartingError(
                "the journal was lost, and what it said of this claim is not found again yet, as "
                "the API server or a GPU does not answer; it is tried again"
            )
        known = self._journal.of_claim(ref.uid)
        left = self._rollback.remove_all(ref.uid, patience=_UNPREPARE_PATIENCE)
        if left.failed:
            raise HardwareError(str(left))
        if known:
            self._statuses.unprepared(ref, known)

    def _forgotten(self, ref: ClaimRef) -> bool:
        """Whether a claim was prepared here by its CDI spec, and a lost journal hides with what."""
        if not self._recovery.has_spec(ref.uid):
            return False
        self._rebuild.run(about_claim=ref.uid)
        return self._rebuild.may_miss(ref.uid)

    def reclaim(self, ref: ClaimRef) -> None:
        """Try once more to remove what is left of a claim, unless something is done for it."""

        def work() -> None:
            if not str(self._rollback.retry_removal(ref.uid)):
                self._observer.acted(Action.RECLAIMED)
                _log.info("reclaimed", extra=about(ref))

        self.background(ref, "reclaim", work)

    def check(self, ref: ClaimRef) -> None:
        """Compare a claim with the hardware, and make again what a reset took from it."""

        def work() -> None:
            changed = self._recovery.check(ref.uid)
            if self._recovery.restore(ref) or changed:
                self._statuses.prepared(ref, self._journal.of_claim(ref.uid))

        self.background(ref, "check", work)

    def processes(self, ref: ClaimRef) -> tuple[int, ...]:
        """Processes in the slices of a claim, as far as NVML tells."""
        return self._rollback.processes(ref.uid)

    def rebuild(self) -> None:
        """Look for what a lost journal leaves out, if that is still to be done."""
        if not self._rebuild.run():
            return
        for uid in self._recovery.strays():
            ref = ClaimRef("", "", uid)
            self.background(ref, "sweep", lambda uid=uid: self._recovery.drop_stray(uid))  # type: ignore[misc]

    def background(self, ref: ClaimRef, name: str, work: Callable[[], object]) -> None:
        """Do something for a claim that kubelet did not ask for, with nothing else beside it."""
        try:
            self._tasks.run(ref.uid, name, work, deadline=self.deadline())
        except PluginError as error:
            _log.debug("%s failed", name, extra=about(ref, error=str(error)))

    def _timed(self, ref: ClaimRef, name: str, work: Callable[[], T], deadline: float) -> T:
        return self._tasks.run(ref.uid, name, work, deadline=deadline)

    def _run(self, ref: ClaimRef, name: str, call: Callable[[], Outcome]) -> Outcome:
        began = self._clock()
        before = self._journal.of_claim(ref.uid)
        failure: Exception | None = None
        try:
            outcome = call()
        except PluginError as error:
            failure = error
            _log.warning("%s failed", name, extra=about(ref, error=str(error)))
            if name == "prepare":
                self._settled(ref, error)
            outcome = Outcome(error=f"claim {ref} (UID {ref.uid}): {error}")
        except Exception as error:  # noqa: BLE001 - told to kubelet; other claims are served
            failure = error
            _log.exception("%s failed", name, extra=about(ref))
            outcome = Outcome(
                error=f"claim {ref} (UID {ref.uid}): internal error (see the log): {error!r}"
            )
        seconds = self._clock() - began
        entries = before or self._journal.of_claim(ref.uid)
        repeated = any(e.state in HELD for e in before)
        self._observer.served(Served(ref, name, seconds, entries, repeated, failure))
        if failure is None:
            for entry in self._journal.of_claim(ref.uid) or before:
                _log.info("%s done", name, extra=device(entry, seconds=round(seconds, 3)))
            if not entries:
                _log.info("%s done: nothing was here", name, extra=about(ref))
        return outcome
