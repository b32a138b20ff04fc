"""Observer of the controller's work: the base class takes every notice and does nothing."""

from __future__ import annotations

from collections.abc import Iterable

from dra.claims.reasons import Reason
from dra.common.resources import Obj
from dra.pods.pods import Pod


class ControllerObserver:
    """Called by the controller's one thread, in passing: no method blocks or raises.

    Claims are objects as JSON.
    """

    def decided(self, seconds: float, *, placed: bool) -> None:
        """A pod's claims were looked at as a problem of placement; ``placed``: they fit."""

    def allocated(self, claim: Obj, profiles: Iterable[str]) -> None:
        """A claim was allocated: its devices' profiles, "" for a whole GPU."""

    def waiting(self, pod: Pod, reason: Reason, claims: Iterable[Obj]) -> None:
        """These are now the claims of the pod that wait."""

    def no_longer_waits(self, *, pod_uid: str = "", claim_uid: str = "") -> None:
        """Nothing of a pod, or not a claim, waits any more."""

    def unreadable(self, mignodes: int) -> None:
        """Number of MigNodes that cannot be read, and whose nodes are left out."""

    def begins(self) -> None:
        """Leadership begins, or has ended: nothing is known of what was before."""
