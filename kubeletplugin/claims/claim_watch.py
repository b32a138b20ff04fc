"""Claims that name this node in their label, watched: those alone, whatever else the cluster has.

The label tells which claims to look at. What a claim was given stands in its allocation.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial

from dra.claims.allocation import label_of, node_label
from dra.claims.claims import Claim, read_claim
from dra.claims.conditions import awaited_devices, told_devices
from dra.common.resources import RESOURCE_CLAIMS, Obj, picked
from dra.gpu.inventory import ClaimRef
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Clock
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.lookup import CUT, IDENTITY, ClaimReader, expected_devices, trim_claim
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.times import FRESH_SECONDS


class ClaimWatch:
    """Tells of each claim which devices of this node it is expected to use, and of none when none.

    ``outcomes`` hears, before ``early``, whether kube-scheduler waits for them, and ``early`` has
    them made again where the claim's status does not say of them what that waits for; both in the
    thread of the watch. The last state of each claim is kept for a moment, unless its parameters
    are more than the controller reads. Thread-safe.

    Any user may set the label, on as many claims of any driver as he likes: of a claim little more
    than its name is held, and nothing but what is for this node is looked at.
    """

    def __init__(
        self, claims: ClaimReader, outcomes: Outcomes, early: EarlySlices, *, clock: Clock
    ) -> None:
        self._places = {"driver": claims.driver, "pool": claims.pool}
        self._outcomes = outcomes
        self._early = early
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[Claim, float]] = OrderedDict()
        self._reflector = Reflector(
            claims.api,
            RESOURCE_CLAIMS,
            label_selector=f"{node_label(claims.driver)}={label_of(claims.pool)}",
            keep=partial(trim_claim, driver=claims.driver, pool=claims.pool),
            remember=_identity,
            on_event=self._changed,
        )

    def start(self) -> None:
        """Begin to watch."""
        self._reflector.start()

    def stop(self) -> None:
        """End the watch."""
        self._reflector.stop()

    def take(self, ref: ClaimRef) -> Claim | None:
        """The claim if it was seen a moment ago; once, so that who tries again reads it anew."""
        with self._lock:
            claim, seen = self._seen.pop(ref.uid, (None, 0.0))
        return claim if self._clock.monotonic() - seen <= FRESH_SECONDS else None

    def _changed(self, change: Change) -> None:
        obj = change.new or change.old
        if obj is None:
            return
        claim = read_claim(obj)
        if change.new is not None and CUT not in obj:
            self._keep(claim)
        devices = expected_devices(claim, **self._places)
        names = tuple(d.device for d in devices) if change.new is not None else ()
        binding = awaited_devices(obj, **self._places) if change.new is not None else {}
        made, failed = told_devices(obj, binding, **self._places)
        wanted = binding.keys() & names
        is_news = self._outcomes.expect(
            claim.ref,
            frozenset(c.uid for c in claim.reserved_for) if wanted else frozenset(),
            says_made=bool(made),
        )
        is_untold = is_news and not failed and made != wanted
        self._early.expect(claim.ref, names, again=is_untold)

    def _keep(self, claim: Claim) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._seen.pop(claim.ref.uid, None)
            self._seen[claim.ref.uid] = claim, now
            while now - next(iter(self._seen.values()))[1] > FRESH_SECONDS:
                self._seen.popitem(last=False)


def _identity(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], IDENTITY)}
