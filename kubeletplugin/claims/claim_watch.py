"""Watch of the claims whose label names this node.

The label only selects the claims; the devices of a claim are read from its allocation.
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
from kubeletplugin.claims.lookup import CUT, IDENTITY, ClaimReader, expected_devices, keep_on_node
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.times import FRESH_SECONDS


class ClaimWatch:
    """Tells ``outcomes`` and ``early`` of the devices that each claim is expected to use here.

    This is done after each change of a claim, in the thread of the watch. First ``outcomes`` gets
    the pods that kube-scheduler binds only once slices are made. Then ``early`` gets the devices,
    none if none are expected; it is to make them again if the claim's status does not show the
    conditions for which kube-scheduler waits. Each claim as last seen is kept for
    ``FRESH_SECONDS``, unless its parameters were cut. Thread-safe.

    Any user may set the label on any number of claims of any driver: little more than a claim's
    name is kept in memory, and devices of other nodes and drivers are ignored.
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
            keep=partial(keep_on_node, driver=claims.driver, pool=claims.pool),
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
        """The claim if it was seen within ``FRESH_SECONDS``; a second call returns None."""
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
