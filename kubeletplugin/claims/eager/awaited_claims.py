"""Claims for whose slices kube-scheduler waits before it binds their pods, and what it is told.

Of such a claim kubelet hears only once the answer stands in its status: nobody else tries again,
and what was made is kept for as long as a pod has the claim reserved.
"""

from __future__ import annotations

import threading

from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses


class AwaitedClaims:
    """Tells by conditions of the claim's devices. Thread-safe; waits for no write."""

    def __init__(self, statuses: ClaimStatuses, journal: Journal, *, pool: str) -> None:
        self._statuses = statuses
        self._journal = journal
        self._pool = pool
        self._lock = threading.Lock()
        self._uids: set[str] = set()

    def note(self, uid: str, is_awaited: bool) -> None:  # noqa: FBT001 - what a watch tells
        """Take note whether slices of a claim are expected here, and waited for."""
        with self._lock:
            (self._uids.add if is_awaited else self._uids.discard)(uid)

    def has(self, uid: str) -> bool:
        """True if kube-scheduler waits for slices of the claim."""
        with self._lock:
            return uid in self._uids

    def made(self, ref: ClaimRef) -> None:
        """All slices of a claim are there."""
        if self.has(ref.uid):
            self._statuses.show_made(ref, lambda: self._journal.of_claim(ref.uid))

    def failed(self, ref: ClaimRef, error: PluginError) -> None:
        """They cannot be made: kube-scheduler is to take the allocation back."""
        if self.has(ref.uid):
            self._statuses.show_refused(ref, str(error), pool=self._pool)

    def returned(self, ref: ClaimRef) -> None:
        """Slices are about to go, which a claim that stays allocated must not call made."""
        if self._statuses.shows(ref.uid):
            self._statuses.withdraw(ref)
