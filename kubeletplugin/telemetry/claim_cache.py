"""Cache of claims as the API server last showed them: kubelet names a claim, but not its pods.

For metrics and logs only. It may be out of date, and nothing is decided by it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass

from dra.claims.claims import Claim

_MOST = 1024
"""Far more than a node has slices."""


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """Facts about a claim: its creation (RFC 3339), its pods by name, its allocated devices."""

    created: str
    pods: tuple[str, ...]
    devices: tuple[str, ...]


_NOTHING = ClaimFacts("", (), ())


class ClaimCache:
    """The claims that were seen last, by UID. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: OrderedDict[str, ClaimFacts] = OrderedDict()

    def see(self, claim: Claim) -> None:
        """Take a claim that the API server showed."""
        devices = claim.allocation.devices if claim.allocation else ()
        pods = tuple(c.name for c in claim.reserved_for if c.resource == "pods" and not c.api_group)
        facts = ClaimFacts(claim.created, pods, tuple(d.device for d in devices))
        with self._lock:
            self._facts[claim.ref.uid] = facts
            self._facts.move_to_end(claim.ref.uid)
            if len(self._facts) > _MOST:
                self._facts.popitem(last=False)

    def of(self, uid: str) -> ClaimFacts:
        """Known facts about a claim; all empty if it was not seen."""
        with self._lock:
            return self._facts.get(uid, _NOTHING)

    def add_pods(self, record: logging.LogRecord) -> None:
        """Add the field ``pod`` to a log record that has ``claim`` and ``uid``."""
        claim, uid = getattr(record, "claim", ""), getattr(record, "uid", "")
        if claim and uid and not hasattr(record, "pod"):
            namespace = str(claim).partition("/")[0]
            if pods := ",".join(f"{namespace}/{pod}" for pod in self.of(uid).pods):
                record.pod = pods
