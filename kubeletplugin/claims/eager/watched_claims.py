"""Claims as the watch has told them a moment ago, which need not be read again to be worked on."""

from __future__ import annotations

import threading
from collections import OrderedDict

from dra.claims.claims import Claim
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import Clock

FRESH_SECONDS = 1.0
"""A change in that time is told by the watch too, and slices made for nothing are given back."""


class WatchedClaims:
    """Keeps the last state of each claim for a moment. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told: OrderedDict[str, tuple[Claim, float]] = OrderedDict()

    def note(self, claim: Claim) -> None:
        """The watch tells a state of a claim."""
        now = self._clock.monotonic()
        with self._lock:
            self._told.pop(claim.ref.uid, None)
            self._told[claim.ref.uid] = claim, now
            while now - next(iter(self._told.values()))[1] > FRESH_SECONDS:
                self._told.popitem(last=False)

    def take(self, ref: ClaimRef) -> Claim | None:
        """The claim if it was told a moment ago; once, so that who tries again reads it anew."""
        with self._lock:
            claim, told = self._told.pop(ref.uid, (None, 0.0))
        return claim if self._clock.monotonic() - told <= FRESH_SECONDS else None
