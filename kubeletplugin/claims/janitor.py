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
from dra.kube.timing import Backoff
from kubeletplugin.claims.context import Context
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.node import Node
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.entries import ARRIVING, HELD, LEAVING
from kubeletplugin.telemetry.observer import Action
from kubeletplugin.telemetry.reports import about
from kubeletplugin.times import (
    CHECK_SECONDS,
    CLAIMS_SECONDS,
    CLOSED_SECONDS,
    LAST_REMOVALS_SECONDS,
    LONGEST_REMOVAL_PAUSE_SECONDS,
    ROUND_SECONDS,
    RPC_SECONDS,
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Claim:
    """Work of the janitor on one claim: when to remove again, and since when it has ended."""

    again: float
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=ROUND_SECONDS, limit=LONGEST_REMOVAL_PAUSE_SECONDS)
    )
    ended: float | None = None

    def removal_is_over(self) -> None:
        """The next removal of the claim begins anew."""
        self.again = 0.0
        self.backoff.reset()


class Janitor:
    """Cleaner with a thread of its own, as it asks the API server and waits for GPUs.

    It works on one claim at a time, with nothing else beside it; failures of one are logged.
    ``fate`` asks the API server for a claim; ``forgotten_seconds`` is how long kubelet may take to
    unprepare one that has ended. ``beat`` is called every round, and before every claim.
    """

    def __init__(  # noqa: PLR0913 - what it looks at
        self,
        context: Context,
        node: Node,
        recovery: Recovery,
        sharing: DeviceSharing,
        *,
        fate: Callable[[ClaimRef], ClaimFate],
        forgotten_seconds: float,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._journal = context.journal
        self._clock = context.clock
        self._node = node
        self._tasks = node.tasks
        self._removal = node.removal
        self._recovery = recovery
        self._sharing = sharing
        self._fate = fate
        self._forgotten_seconds = forgotten_seconds
        self._beat = beat
        self._next_claims = self._next_check = self._clock.monotonic()
        self._claims: dict[str, _Claim] = {}
        self.thread = Loop(
            "janitor",
            self._turn,
            beat=beat,
            backoff=Backoff(first=ROUND_SECONDS),
            clock=context.clock,
        )

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
            self._sharing.sweep()
        if check:
            self._next_check = now + CHECK_SECONDS
            self._rebuild()
        entries = self._journal.entries()
        due = {e.claim.uid for e in entries if not e.idle} | self._removal.idle.due(entries)
        refs = dict.fromkeys(e.claim for e in entries if e.claim.uid in due)
        before = self._claims
        self._claims = {ref.uid: before.get(ref.uid, _Claim(now)) for ref in refs}
        for ref in refs:
            if self.thread.is_stopping():
                return
            self._beat()
            if self._tasks.idle(ref.uid):
                self._tend_claim(ref, now, ask=ask, check=check, at_once=everything)

    def give_up_idle(self) -> None:
        """Remove what is kept for other claims, of which nobody would know who ends it.

        A driver may refuse an instance for a moment; in all that is waited for a few seconds only.
        """
        end = self._clock.monotonic() + LAST_REMOVALS_SECONDS
        idle = (e for e in self._journal.entries() if e.idle and not e.ready)
        for ref in dict.fromkeys(e.claim for e in idle):
            patience = end - self._clock.monotonic()
            if patience <= 0:
                return  # the next start removes the rest
            self._run(ref, "reclaim", partial(self._remove, ref, patience), seconds=patience)

    def _turn(self) -> float:
        if not self._context.readiness.is_ready:
            return CLOSED_SECONDS
        self.tend()
        return ROUND_SECONDS

    def _tend_claim(
        self, ref: ClaimRef, now: float, *, ask: bool, check: bool, at_once: bool
    ) -> None:
        entries, claim = self._journal.of_claim(ref.uid), self._claims[ref.uid]
        if not any(e.state in LEAVING for e in entries):
            claim.removal_is_over()
        elif at_once or now >= claim.again:
            self._run(ref, "reclaim", partial(self._remove, ref))
            claim.again = self._clock.monotonic() + claim.backoff.next_delay()
        if ask and not any(e.suspect for e in entries):
            self._run(ref, "collect", partial(self._collect, ref, claim))
        if check and any(e.state in HELD for e in self._journal.of_claim(ref.uid)):
            self._run(ref, "check", partial(self._check, ref))

    def _run(
        self, ref: ClaimRef, name: str, work: Callable[[], object], *, seconds: float = RPC_SECONDS
    ) -> None:
        """Do ``work`` for a claim once nothing else is done for it; ``name`` is for logs.

        It is waited for at most ``seconds``, and goes on after them.
        """
        try:
            self._tasks.run(ref.uid, name, work, deadline=self._clock.monotonic() + seconds)
        except PluginError as error:
            _log.warning("%s failed", name, extra=about(ref, error=str(error)))

    def _remove(self, ref: ClaimRef, patience: float = 0.0) -> None:
        """Try again to remove what is left of a claim: once, or for ``patience`` seconds."""
        if not str(self._removal.retry(ref.uid, patience=patience)):
            self._context.observer.acted(Action.RECLAIMED)
            _log.info("reclaimed", extra=about(ref))

    def _check(self, ref: ClaimRef) -> None:
        """Compare a claim with the hardware, and make again what a reset took from it."""
        changed = self._recovery.check(ref.uid)
        changed = self._recovery.restore(ref) or changed
        changed = self._sharing.keep(self._journal.of_claim(ref.uid)) or changed
        if changed:
            self._node.outcomes.show(ref)

    def _rebuild(self) -> None:
        """Look for what a lost journal leaves out, if that is still to be done."""
        if not self._node.rebuild.run():
            return
        for uid in self._recovery.strays():
            self._run(ClaimRef("", "", uid), "sweep", partial(self._recovery.drop_stray, uid))

    def _collect(self, ref: ClaimRef, claim: _Claim) -> None:
        """Take a claim off the node that kubelet will not unprepare, unless a process uses it.

        Nothing else works on the claim meanwhile, so that what the API server said stays true.
        """
        fate = self._fate(ref)
        if fate is ClaimFate.IDLE and self._is_half_made(ref):
            _log.info("left half made, and not to be used here", extra=about(ref))
            self._removal.remove_unfinished(ref.uid)
            self._context.observer.acted(Action.UNDONE)
            return
        if fate is ClaimFate.ENDED and not self._is_forgotten(claim):
            self._ask_soon()
            return
        if fate not in {ClaimFate.GONE, ClaimFate.FREED, ClaimFate.ENDED}:
            if fate is not ClaimFate.UNKNOWN:
                claim.ended = None
            return
        if pids := self._removal.processes(ref):
            names = ", ".join(map(str, pids))
            _log.warning("gone, but still in use", extra=about(ref, pids=names))
            message = f"the claim is gone; its slices are kept until processes {names} have ended"
            self._context.reports.report_claim(ref, NodeReason.IN_USE, message, warning=True)
            self._ask_soon()
            return
        _log.info("gone, its slices are removed", extra=about(ref, reason=fate.name.lower()))
        self._node.release(ref)
        self._context.observer.acted(Action.COLLECTED)

    def _ask_soon(self) -> None:
        self._next_claims = min(self._next_claims, self._clock.monotonic() + CHECK_SECONDS)

    def _is_half_made(self, ref: ClaimRef) -> bool:
        """True if a start left something half made, as the API server did not answer."""
        return any(e.state in ARRIVING and not e.early for e in self._journal.of_claim(ref.uid))

    def _is_forgotten(self, claim: _Claim) -> bool:
        """True if an ended claim has waited for kubelet's Unprepare for too long.

        A kubelet that lost its checkpoint of claims never asks for those of pods that ran before,
        and the claim cannot go before its slice has.
        """
        now = self._clock.monotonic()
        if claim.ended is None:
            claim.ended = now
        return now - claim.ended >= self._forgotten_seconds
