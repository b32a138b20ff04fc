"""Outcome of each claim's last Prepare, and of slices made early, with what is published of it.

Kubelet repeats a failed Prepare only after a minute or more. The MigNode lists such claims, so that
the controller can have kubelet ask again as soon as that is of use. Lasting failures are written to
the claim's status. If kube-scheduler waits for slices before it binds a pod, the claim's status
says whether they were made.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dra.claims.conditions import PREPARE_FAILING
from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef, FailedClaim
from dra.kube.timing import rfc3339_micro
from kubeletplugin.claims.lookup import ClaimUnreadableError
from kubeletplugin.common import Common
from kubeletplugin.errors import ClaimError, PluginError, denied_gpu, failing_gpu, is_permanent
from kubeletplugin.gpus.monitor import HealthMonitor
from kubeletplugin.journal.entries import HELD
from kubeletplugin.publishing.resourceslices import FailedGpus
from kubeletplugin.publishing.statuses import ClaimStatuses
from kubeletplugin.times import LISTED_SECONDS

SEVERAL = 3
"""Number of failures in a row after which they are written to the claim's status."""

_MOST = 64


@dataclass(slots=True)
class _Outcome:
    """Outcomes of one claim.

    ``listed``: its entry in the MigNode; None if it is not listed. ``at``: monotonic time of
    ``listed``. ``failures``: number of failures of Prepare in a row. ``served``: UIDs of the pods
    that were waiting for binding when the claim's status said that the slices are made; None if
    kube-scheduler waits for no pod of the claim.
    """

    listed: FailedClaim | None = None
    at: float = 0.0
    failures: int = 0
    served: frozenset[str] | None = None


class Outcomes:
    """The outcomes of this node's claims, the latest failures last. Thread-safe.

    A claim that fails because of a mistake in itself is not listed: no change on the node helps.
    """

    def __init__(
        self,
        common: Common,
        monitor: HealthMonitor,
        statuses: ClaimStatuses,
        failed_gpus: FailedGpus,
    ) -> None:
        self._journal = common.journal
        self._reports = common.reports
        self._clock = common.clock
        self._monitor = monitor
        self.statuses = statuses
        self._failed_gpus = failed_gpus
        self._on_change = common.changed
        self._lock = threading.Lock()
        self._of: dict[str, _Outcome] = {}
        self._is_cut_short = False
        self.registered_at: float | None = None
        """Monotonic time from which kubelet can call this process."""
        self.resumed = ""
        """Time (RFC 3339) from which kubelet can repeat calls cut short by a restart, or empty."""

    # -- calls of kubelet

    def prepared(self, ref: ClaimRef) -> None:
        """Take note that a claim is prepared.

        If an earlier call failed, the claim is listed as passing: a repeated call will succeed.
        """
        self.statuses.show(ref)
        with self._lock:
            is_listed = ref.uid in self._of and self._of[ref.uid].listed is not None
        if is_listed:
            self._list(ref, passing=True)

    def failed(self, ref: ClaimRef, error: PluginError) -> None:
        """Take note that kubelet got ``error`` for a claim, and publish it."""
        failures = 0
        if not isinstance(error, ClaimError):
            passing = error.passing or isinstance(error, ClaimUnreadableError)
            failures = self._list(ref, passing=passing, gpu=failing_gpu(error), failures=1)
        self._note_gpu(error)
        if gpu := denied_gpu(error):
            self._monitor.take_denial(gpu, str(error))
        held = self._is_held(ref)
        if is_permanent(error, held=held):
            self.statuses.show_failure(ref, str(error))
            self._reports.report_claim(ref, NodeReason.PREPARE_FAILED, str(error), warning=True)
        elif failures >= SEVERAL and not held:
            text = f"{failures} times in a row: {error}"
            self.statuses.show_failure(ref, text, reason=PREPARE_FAILING)

    # -- slices made before kubelet asks

    def expect(self, ref: ClaimRef, pods: frozenset[str], *, says_made: bool) -> bool:
        """Take note of the pods (UIDs) that kube-scheduler binds once the claim's slices are made.

        While there are such pods, the claim's slices are tried for longer and kept without a limit:
        kubelet does not ask for the claim before its status says that the slices are made.
        ``says_made``: the claim's status says so of a slice. If no pod waits any more, that status
        is withdrawn, as the slices are given back, unless kubelet was told of them. Returns True if
        one of ``pods`` was not there yet when the status said before that slices are made.
        """
        with self._lock:
            known = self._of.setdefault(ref.uid, _Outcome())
            served = known.served or frozenset()
            known.served = (pods if says_made else served & pods) if pods else None
            self._drop_if_empty(ref.uid)
        if says_made and not pods and not self._is_held(ref):
            self.statuses.withdraw(ref)
        return not pods <= served

    def is_awaited(self, uid: str) -> bool:
        """True if kube-scheduler waits for slices of the claim before it binds a pod."""
        with self._lock:
            return uid in self._of and self._of[uid].served is not None

    def made_early(self, ref: ClaimRef) -> None:
        """Take note that all slices of a claim are made; tell kube-scheduler if it waits."""
        self._failed_gpus.prove(entry.gpu for entry in self._journal.of_claim(ref.uid))
        if self.is_awaited(ref.uid):
            self.statuses.show(ref, awaited=True)

    def not_made_early(self, ref: ClaimRef, error: PluginError) -> None:
        """Take note that a claim's slices cannot be made.

        If kube-scheduler waits for them, it is told, so that it takes the allocation back.
        """
        if not isinstance(error, ClaimError):
            self._list(ref, passing=False, gpu=failing_gpu(error))
        self._note_gpu(error)
        if self.is_awaited(ref.uid):
            self.statuses.show_refused(ref, str(error))

    # -- what the MigNode lists

    def listed(self) -> tuple[FailedClaim, ...]:
        """The failed claims for the MigNode: at most 64, each for ``LISTED_SECONDS``."""
        oldest = self._clock.monotonic() - LISTED_SECONDS
        with self._lock:
            recent = {u: o.listed for u, o in self._of.items() if o.listed and o.at > oldest}
            kept = _most_of_each(recent)
            for uid in [u for u, o in self._of.items() if o.listed and u not in kept]:
                self._unlist(uid)
            return tuple(kept.values())

    def forget(self, ref: ClaimRef) -> None:
        """Take a claim off the list: kubelet has its devices, or no longer wants them."""
        with self._lock:
            is_listed = self._unlist(ref.uid)
        if is_listed:
            self._on_change()

    def cut_short(self) -> None:
        """Take note that a call of kubelet failed by a restart, or may have found no plugin."""
        self._is_cut_short = True
        self._resume()

    def registered(self) -> None:
        """Take note that kubelet has registered the plugin, and can call it."""
        self.registered_at = self._clock.monotonic()
        self._resume()

    def _resume(self) -> None:
        with self._lock:
            if self.registered_at is None or not self._is_cut_short:
                return
            self._is_cut_short = False
            self.resumed = rfc3339_micro(self._clock.now())
        self._on_change()

    def _list(self, ref: ClaimRef, *, passing: bool, gpu: str = "", failures: int = 0) -> int:
        """List a claim as the latest; returns its number of failures of Prepare in a row."""
        moment = rfc3339_micro(self._clock.now())
        with self._lock:
            known = self._of.pop(ref.uid, None) or _Outcome()
            self._of[ref.uid] = known
            known.listed = FailedClaim(ref.namespace, ref.name, ref.uid, moment, passing, gpu)
            known.at = self._clock.monotonic()
            known.failures += failures
            total = known.failures
        self._on_change()
        return total

    def _unlist(self, uid: str) -> bool:
        known = self._of.get(uid)
        if known is None:
            return False
        was_listed = known.listed is not None
        known.listed, known.failures = None, 0
        self._drop_if_empty(uid)
        return was_listed

    def _drop_if_empty(self, uid: str) -> None:
        known = self._of[uid]
        if known.listed is None and known.served is None:
            del self._of[uid]

    def _is_held(self, ref: ClaimRef) -> bool:
        return any(e.state in HELD for e in self._journal.of_claim(ref.uid))

    def _note_gpu(self, error: PluginError) -> None:
        if gpu := failing_gpu(error):
            self._failed_gpus.failed([gpu])


def _most_of_each(failed: dict[str, FailedClaim]) -> dict[str, FailedClaim]:
    """The claims to list, at most ``_MOST``.

    Namespaces take turns, the latest claims of each first: none can displace those of others.
    """
    if len(failed) <= _MOST:
        return failed
    seen: dict[str, int] = {}
    ranks: dict[str, int] = {}
    for uid in reversed(failed):
        namespace = failed[uid].claim.namespace
        ranks[uid] = seen[namespace] = seen.get(namespace, 0) + 1
    kept = frozenset(sorted(ranks, key=ranks.__getitem__)[:_MOST])
    return {uid: each for uid, each in failed.items() if uid in kept}
