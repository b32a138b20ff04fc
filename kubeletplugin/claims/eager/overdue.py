"""Slices that were made ahead and that kubelet does not ask for, although it should have by now.

A pod is bound right after its claim is allocated, and kubelet asks within milliseconds of that. If
it could not, it tries again only after 60 to 90 s, and who sees that it did not is this node alone.
"""

from __future__ import annotations

from collections.abc import Callable

from dra.gpu.inventory import ClaimRef
from dra.kube.timing import Clock
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses

OVERDUE_SECONDS = 0.5
"""Time from when a claim's slices are there, many times what it takes where nothing is busy. A pod
that waits for other things takes longer, and its kubelet is told once for nothing."""

LONGEST_SECONDS = 10.0
"""The same while kubelet goes on asking for other claims, and may still come to this one."""


class OverdueSlices:
    """Says of them in the status of their claim that nobody has asked for them, once.

    ``expected``: a claim's pod may be bound by now, by its UID. Owned by one thread, but for
    ``asked``.
    """

    def __init__(
        self,
        journal: Journal,
        statuses: ClaimStatuses,
        *,
        expected: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._statuses = statuses
        self._expected = expected
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._asked = float("-inf")

    def asked(self) -> None:
        """Kubelet got what it asked for, of any claim. Called by any thread."""
        self._asked = self._clock.monotonic()

    def look(self) -> float | None:
        """Tell of what is overdue; seconds until more may be."""
        now = self._clock.monotonic()
        waiting = self._waiting()
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._told &= waiting.keys()
        pauses = []
        for uid in waiting.keys() - self._told:
            since = self._since[uid]
            due = min(max(since, self._asked) + OVERDUE_SECONDS, since + LONGEST_SECONDS)
            left = due - now
            if left > 0:
                pauses.append(left)
            else:
                self._told.add(uid)
                self._tell(waiting[uid])
        return min(pauses, default=None)

    def given_back(self, ref: ClaimRef) -> None:
        """The slices of a claim are gone."""
        if ref.uid in self._told:
            self._statuses.withdraw(ref)

    def _tell(self, ref: ClaimRef) -> None:
        self._statuses.show_overdue(ref, lambda: self._journal.of_claim(ref.uid))

    def _waiting(self) -> dict[str, ClaimRef]:
        """Claims whose slices are all made ahead, and none of them handed to kubelet yet."""
        of_claim: dict[str, list[Entry]] = {}
        for entry in self._journal.entries():
            of_claim.setdefault(entry.claim.uid, []).append(entry)
        return {
            uid: entries[0].claim
            for uid, entries in of_claim.items()
            if all(e.early and e.ci_id is not None for e in entries) and self._expected(uid)
        }
