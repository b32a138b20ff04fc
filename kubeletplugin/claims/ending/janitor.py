"""Cleaning up without a call of kubelet: claims that are gone, slices half removed, slices lost.

Kubelet unprepares claims of pods that it knows; a pod that was force-deleted while kubelet and
plugin were down it does not know any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.ending.claim_fate import ClaimFate
from kubeletplugin.claims.prepare.idle_slices import IdleSlices
from kubeletplugin.claims.upkeep import Upkeep
from kubeletplugin.journal.entries import ARRIVING, HELD, LEAVING
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.logfields import about
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.telemetry.readiness import Readiness
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
CLAIMS_SECONDS = 300.0
CHECK_SECONDS = 30.0
ROUND_SECONDS = 2.0
_MOST_SECONDS = 60.0
_CLOSED_SECONDS = 0.5
_GIVING_UP_SECONDS = 5.0


@dataclass(slots=True)
class _Removal:
    """Attempts to remove the remaining slices of one claim: the next, and the pauses between."""

    at: float
    backoff: Backoff = field(default_factory=lambda: Backoff(first=2.0, limit=_MOST_SECONDS))


class Janitor:
    """Cleaner with a thread of its own, as it asks the API server and waits for GPUs.

    ``release`` takes a claim off the node, ``processes`` has the ids of those in its slices.
    ``forgotten_seconds`` is how long kubelet may take to unprepare a claim that has ended;
    ``beat`` is called every round, and before every claim.
    """

    def __init__(  # noqa: PLR0913 - what it looks at
        self,
        journal: Journal,
        upkeep: Upkeep,
        tasks: ClaimTasks,
        *,
        release: Callable[[ClaimRef], None],
        processes: Callable[[ClaimRef], tuple[int, ...]],
        readiness: Readiness,
        fate: Callable[[ClaimRef], ClaimFate],
        reports: Reports,
        forgotten_seconds: float,
        idle: IdleSlices,
        observer: NodeObserver | None = None,
        beat: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._observer = observer or NodeObserver()
        self._beat = beat
        self._journal = journal
        self._upkeep = upkeep
        self._release = release
        self._processes = processes
        self._tasks = tasks
        self._readiness = readiness
        self._fate = fate
        self._reports = reports
        self._forgotten_seconds = forgotten_seconds
        self._idle = idle
        self._clock = clock or SystemClock()
        self._next_claims = self._next_check = self._clock.monotonic()
        self._removals: dict[str, _Removal] = {}
        self._ended: dict[str, float] = {}
        self.thread = Loop(
            "janitor", self._turn, beat=beat, backoff=Backoff(first=ROUND_SECONDS), clock=clock
        )

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread without waiting for the work that is under way."""
        self.thread.stop()

    def check_soon(self) -> None:
        """Check in the next round what is held, its CDI specs among it."""
        self._next_check = self._clock.monotonic()

    def tend(self, *, everything: bool = False) -> None:
        """Try again what is due: removing what is on its way out, checking what is held.

        Now and then, or with ``everything`` at once, the API server is asked for every claim.
        """
        self._journal.retry()
        now = self._clock.monotonic()
        ask = everything or now >= self._next_claims
        check = everything or now >= self._next_check
        if ask:
            self._next_claims = now + CLAIMS_SECONDS
            self._upkeep.sweep_daemons()
        if check:
            self._next_check = now + CHECK_SECONDS
            self._upkeep.rebuild()
        entries = self._journal.entries()
        due = self._idle.due(entries)
        busy = {e.claim.uid for e in entries if not e.idle}
        claims = dict.fromkeys(e.claim for e in entries if e.claim.uid in busy | due)
        uids = {ref.uid for ref in claims}
        self._removals = {u: r for u, r in self._removals.items() if u in uids}
        for uid in self._ended.keys() - uids:
            self._ended.pop(uid, None)
        for ref in claims:
            if self.thread.is_stopping():
                return
            self._beat()
            if self._tasks.idle(ref.uid):
                self._claim(ref, now, ask=ask, check=check, at_once=everything)

    def give_up_idle(self) -> None:
        """Remove what is kept for other claims, of which nobody would know who ends it.

        A driver may refuse an instance for a moment; in all that is waited for a few seconds only.
        """
        end = self._clock.monotonic() + _GIVING_UP_SECONDS
        idle = (e for e in self._journal.entries() if e.idle and not e.ready)
        for ref in dict.fromkeys(e.claim for e in idle):
            patience = end - self._clock.monotonic()
            if patience <= 0:
                return  # the next start removes the rest
            self._upkeep.retry_removal(ref, patience=patience, seconds=patience)

    def _turn(self) -> float:
        if not self._readiness.is_ready:
            return _CLOSED_SECONDS
        self.tend()
        return ROUND_SECONDS

    def _claim(self, ref: ClaimRef, now: float, *, ask: bool, check: bool, at_once: bool) -> None:
        entries = self._journal.of_claim(ref.uid)
        if any(e.state in LEAVING and not e.quarantined for e in entries):
            due = self._removals.setdefault(ref.uid, _Removal(now))
            if at_once or now >= due.at:
                self._upkeep.retry_removal(ref)
                due.at = self._clock.monotonic() + due.backoff.next_delay()
        else:
            self._removals.pop(ref.uid, None)
        if ask and not any(e.suspect for e in entries):
            self._upkeep.run(ref, "collect", partial(self._collect, ref))
        if check and any(e.state in HELD for e in self._journal.of_claim(ref.uid)):
            self._upkeep.check(ref)

    def _collect(self, ref: ClaimRef) -> None:
        """Take a claim off the node that kubelet will not unprepare, unless a process uses it.

        Nothing else works on the claim meanwhile, so that what the API server said stays true.
        """
        fate = self._fate(ref)
        if fate is ClaimFate.IDLE and self._is_half_made(ref):
            _log.info("left half made, and not to be used here", extra=about(ref))
            self._upkeep.undo(ref)
            return
        if fate is ClaimFate.ENDED and not self._forgotten(ref):
            self._next_claims = min(self._next_claims, self._clock.monotonic() + CHECK_SECONDS)
            return
        if fate not in {ClaimFate.GONE, ClaimFate.FREED, ClaimFate.ENDED}:
            if fate is not ClaimFate.UNKNOWN:
                self._ended.pop(ref.uid, None)
            return
        if pids := self._processes(ref):
            names = ", ".join(map(str, pids))
            _log.warning("gone, but still in use", extra=about(ref, pids=names))
            message = f"the claim is gone; its slices are kept until processes {names} have ended"
            self._reports.report_claim(ref, NodeReason.IN_USE, message, warning=True)
            self._next_claims = min(self._next_claims, self._clock.monotonic() + CHECK_SECONDS)
            return
        _log.info("gone, its slices are removed", extra=about(ref, reason=fate.name.lower()))
        self._release(ref)
        self._observer.acted(Action.COLLECTED)

    def _is_half_made(self, ref: ClaimRef) -> bool:
        """True if a start left something half made, as the API server did not answer."""
        return any(e.state in ARRIVING and not e.early for e in self._journal.of_claim(ref.uid))

    def _forgotten(self, ref: ClaimRef) -> bool:
        """True if an ended claim has waited for kubelet's Unprepare for too long.

        A kubelet that lost its checkpoint of claims never asks for those of pods that ran before,
        and the claim cannot go before its slice has.
        """
        since = self._ended.setdefault(ref.uid, self._clock.monotonic())
        return self._clock.monotonic() - since >= self._forgotten_seconds
