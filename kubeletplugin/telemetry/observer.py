"""Observer of the node's work: the base class takes every notice and does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dra.claims.claims import Claim
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import Entry


class Action(StrEnum):
    """Deed of the node without a call of kubelet.

    ``finished`` and ``undone``: a claim that was left half done. ``lost`` and ``found``: a prepared
    slice went from the hardware, or came back. ``restored``: what a claim lost by a reset was made
    again. ``reclaimed``: what could not be removed at once.
    ``collected``: a claim that kubelet had forgotten. ``rebuilt``: an entry of a lost journal.
    ``swept``: a CDI spec without a claim. ``ahead``: slices were made before kubelet asked;
    ``refused``: they could not be; ``met``: kubelet asked for them; ``returned``: it did not.
    """

    FINISHED = "finished"
    UNDONE = "undone"
    LOST = "lost"
    FOUND = "found"
    RESTORED = "restored"
    RECLAIMED = "reclaimed"
    COLLECTED = "collected"
    REBUILT = "rebuilt"
    SWEPT = "swept"
    AHEAD = "ahead"
    REFUSED = "refused"
    MET = "met"
    RETURNED = "returned"


class Operation(StrEnum):
    """Call of kubelet, as metrics and logs name it."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


@dataclass(frozen=True, slots=True)
class Served:
    """A call of kubelet for one claim that was answered.

    ``entries`` are the claim's in the journal before it, or else after it. ``repeated``: it was
    prepared already. ``error`` is None when the answer was good.
    """

    ref: ClaimRef
    operation: Operation
    seconds: float
    entries: tuple[Entry, ...]
    repeated: bool
    error: Exception | None


class NodeObserver:
    """Called in passing, from any thread: no method blocks or raises."""

    def served(self, served: Served) -> None:
        """A call of kubelet was answered."""

    def nvml_call(self, operation: str, code: str, seconds: float) -> None:
        """A function of NVML was called; ``code`` is an nvmlReturn_t by name, or HANG."""

    def lock_wait(self, seconds: float) -> None:
        """A GPU's lock was waited for, with or without getting it."""

    def acted(self, action: Action) -> None:
        """The node did something of its own accord."""

    def claim_seen(self, claim: Claim) -> None:
        """The API server showed a claim."""
