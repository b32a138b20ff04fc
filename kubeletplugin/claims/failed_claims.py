"""Claims whose last Prepare failed or was cut short, of which kubelet asks again only much later.

The MigNode lists them, so that the controller has kubelet ask again as soon as that is of use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dra.gpu.inventory import ClaimRef, FailedClaim
from dra.kube.timing import Clock, SystemClock, rfc3339_micro
from kubeletplugin.claims.prepare.lookup import ClaimUnreadableError
from kubeletplugin.errors import ClaimError, PluginError, failing_gpu

LISTED_SECONDS = 600.0
"""Kubelet repeats a failed Prepare within 90 s: of a claim that is older nobody asks any more."""

_MOST = 64

_Failed = dict[str, tuple[FailedClaim, float]]


class FailedClaims:
    """List of them, the latest failures last. Thread-safe; ``on_change`` is called without a lock.

    A mistake in the claim itself is not listed: nothing that happens on the node mends it.
    """

    def __init__(self, *, on_change: Callable[[], None], clock: Clock | None = None) -> None:
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._failed: _Failed = {}
        self._in_a_row: dict[str, int] = {}
        self._is_cut_short = self._is_registered = False
        self._resumed = ""

    @property
    def resumed(self) -> str:
        """The time when kubelet could call again after calls were cut short; empty if not."""
        with self._lock:
            return self._resumed

    def listed(self) -> tuple[FailedClaim, ...]:
        """The failed claims that kubelet may still ask for."""
        now = self._clock.monotonic()
        with self._lock:
            recent = {u: f for u, f in self._failed.items() if now < f[1] + LISTED_SECONDS}
            self._failed = kept = _most_of_each(recent)
            self._in_a_row = {u: n for u, n in self._in_a_row.items() if u in kept}
            return tuple(failed for failed, _ in kept.values())

    def failed(self, ref: ClaimRef, error: PluginError) -> int:
        """Kubelet was told ``error``; returns how often in a row it was told one."""
        if isinstance(error, ClaimError):
            return 0
        with self._lock:
            count = self._in_a_row[ref.uid] = self._in_a_row.get(ref.uid, 0) + 1
        passing = error.passing or isinstance(error, ClaimUnreadableError)
        self._list(ref, passing=passing, gpu=failing_gpu(error))
        return count

    def not_made_ahead(self, ref: ClaimRef, error: PluginError) -> None:
        """Slices that kubelet has not asked for could not be made because of ``error``."""
        if not isinstance(error, ClaimError):
            self._list(ref, passing=False, gpu=failing_gpu(error))

    def made(self, ref: ClaimRef) -> None:
        """The claim is prepared; if kubelet got an error meanwhile, it would get devices now."""
        with self._lock:
            is_listed = ref.uid in self._failed
        if is_listed:
            self._list(ref, passing=True)

    def forget(self, ref: ClaimRef) -> None:
        """Kubelet has the devices of the claim, or wants it no more."""
        with self._lock:
            known = self._failed.pop(ref.uid, None)
            self._in_a_row.pop(ref.uid, None)
        if known is not None:
            self._on_change()

    def cut_short(self) -> None:
        """The last run of this program ended in the middle of a Prepare; kubelet got an error."""
        with self._lock:
            self._is_cut_short = True
        self._resume()

    def registered(self) -> None:
        """Kubelet has taken up the plugin, and can call it."""
        with self._lock:
            self._is_registered = True
        self._resume()

    def _resume(self) -> None:
        with self._lock:
            if not (self._is_registered and self._is_cut_short):
                return
            self._is_cut_short = False
            self._resumed = rfc3339_micro(self._clock.now())
        self._on_change()

    def _list(self, ref: ClaimRef, *, passing: bool, gpu: str = "") -> None:
        moment = rfc3339_micro(self._clock.now())
        with self._lock:
            self._failed.pop(ref.uid, None)
            self._failed[ref.uid] = (
                FailedClaim(ref.namespace, ref.name, ref.uid, moment, passing, gpu),
                self._clock.monotonic(),
            )
        self._on_change()


def _most_of_each(failed: _Failed) -> _Failed:
    """As many as are listed: the latest of each namespace, so that none drives others' out."""
    if len(failed) <= _MOST:
        return failed
    seen: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for uid in reversed(failed):
        namespace = failed[uid][0].claim.namespace
        ranks[uid] = seen[namespace] = seen.get(namespace, 0) + 1
    kept = frozenset(sorted(ranks, key=ranks.__getitem__)[:_MOST])
    return {uid: each for uid, each in failed.items() if uid in kept}
