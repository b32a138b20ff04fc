"""Claims for whose slices kube-scheduler waits before it binds their pods, and what it is told.

Of such a claim kubelet hears only once the answer stands in its status: nobody else tries again,
and what was made is kept for as long as a pod has the claim reserved.
"""

from __future__ import annotations

import threading

from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses


class AwaitedClaims:
    """Tells by conditions of the claim's devices. Thread-safe; waits for no write."""

    def __init__(self, statuses: ClaimStatuses, journal: Journal, *, pool: str) -> None:
        self._statuses = statuses
        self._journal = journal
        self._pool = pool
        self._lock = threading.Lock()
        self._served: dict[str, frozenset[str]] = {}

    def note(self, ref: ClaimRef, pods: frozenset[str], *, says_made: bool) -> bool:
        """Take note of the pods (UIDs) for which slices are waited for, none if none are.

        ``says_made``: the claim's status says of one of them that it is there. Of a claim that is
        allocated still, and expected no more, that must not stay: what kubelet was not told of is
        given back. Returns whether a pod waits that has not seen it said; one that has is bound.
        """
        with self._lock:
            served = self._served.pop(ref.uid, frozenset())
            if pods:
                self._served[ref.uid] = pods if says_made else served & pods
        held = any(e.state in HELD for e in self._journal.of_claim(ref.uid))
        if says_made and not pods and not held:
            self._statuses.withdraw(ref)
        return not pods <= served

    def has(self, uid: str) -> bool:
        """True if kube-scheduler waits for slices of the claim."""
        with self._lock:
            return uid in self._served

    def made(self, ref: ClaimRef) -> None:
        """All slices of a claim are there."""
        if self.has(ref.uid):
            self._statuses.show_made(ref, lambda: self._journal.of_claim(ref.uid))

    def failed(self, ref: ClaimRef, error: PluginError) -> None:
        """They cannot be made: kube-scheduler is to take the allocation back."""
        if self.has(ref.uid):
            self._statuses.show_refused(ref, str(error), pool=self._pool)
