"""What nobody asks for: claims that are gone without an Unprepare, and slices left half removed.

Kubelet unprepares claims of pods that it knows; a pod that was force-deleted while kubelet and
plugin were down it does not know any more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra.inventory import ClaimRef
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.gate import Gate
from kubeletplugin.journal import Journal, State
from kubeletplugin.node import Node
from kubeletplugin.works import ClaimWorks

_log = logging.getLogger(__name__)
CLAIMS_SECONDS = 300.0
ROUND_SECONDS = 10.0
_CLOSED_SECONDS = 0.5


class Janitor:
    """One thread of its own: it asks the API server, and waits for GPUs."""

    def __init__(  # noqa: PLR0913 - what it looks at
        self,
        journal: Journal,
        node: Node,
        works: ClaimWorks,
        *,
        gate: Gate,
        is_gone: Callable[[ClaimRef], bool],
        clock: Clock | None = None,
    ) -> None:
        self._journal = journal
        self._node = node
        self._works = works
        self._gate = gate
        self._is_gone = is_gone
        self._clock = clock or SystemClock()
        self._next_claims = self._clock.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="janitor", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is under way goes on to its end."""
        self._stopping.set()

    def tend(self) -> None:
        """Try again to remove what is being removed; now and then, ask for every claim."""
        ask = self._clock.monotonic() >= self._next_claims
        if ask:
            self._next_claims = self._clock.monotonic() + CLAIMS_SECONDS
        for ref in dict.fromkeys(e.claim for e in self._journal.entries()):
            if self._stopping.is_set() or not self._works.idle(ref.uid):
                continue
            states = {e.state for e in self._journal.of_claim(ref.uid)}
            if State.DESTROYING in states or (ask and self._is_gone(ref)):
                self._release(ref)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._gate.is_open:
                self._clock.wait(self._stopping, _CLOSED_SECONDS)
                continue
            try:
                self.tend()
            except Exception:  # noqa: BLE001 - a janitor that dies silently is worse
                _log.exception("janitor")
            self._clock.wait(self._stopping, ROUND_SECONDS)

    def _release(self, ref: ClaimRef) -> None:
        _log.info("claim %s (UID %s) is gone or going; its slices are removed", ref, ref.uid)
        outcome = self._node.unprepare(ref, deadline=self._node.deadline())
        if outcome.error:
            _log.warning("left for the next round: %s", outcome.error)
