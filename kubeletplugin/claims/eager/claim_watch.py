"""Claims that name this node in their label, watched: those alone, whatever else the cluster has.

The label tells which claims to look at. What a claim was given stands in its allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dra.claims.allocation import label_of, node_label
from dra.claims.claims import Claim, read_claim
from dra.claims.conditions import awaited_devices, told_devices
from dra.claims.trimming import trim_allocation, without_others
from dra.common.resources import RESOURCE_CLAIMS, Obj, at, picked
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.reflector import Change, Reflector
from kubeletplugin.claims.eager.awaited_claims import AwaitedClaims
from kubeletplugin.claims.prepare.lookup import expected_devices

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_METADATA = (*_IDENTITY, "deletionTimestamp")
_CUT = "cut"
"""Field of a claim whose parameters are too many to be read here."""


class ClaimWatch:
    """Tells of each claim which devices of ``pool`` it is expected to use, and of none when none.

    ``awaited`` hears, before that, whether kube-scheduler waits for them, and ``untold``, after it,
    that the claim's status does not say of them what that waits for. ``told`` hears of the claim
    itself, first of all, unless its parameters are more than the controller reads. All are called
    in the thread of the watch, and must not block.

    Any user may set the label, on as many claims of any driver as he likes: of a claim little more
    than its name is held, and nothing but what is for the pool is looked at.
    """

    def __init__(  # noqa: PLR0913 - which claims, and whom it tells
        self,
        api: KubeApi,
        *,
        driver: str,
        pool: str,
        expect: Callable[[ClaimRef, tuple[str, ...]], None],
        awaited: AwaitedClaims,
        untold: Callable[[ClaimRef, tuple[str, ...]], None],
        told: Callable[[Claim], None] = lambda _: None,
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._expect = expect
        self._awaited = awaited
        self._untold = untold
        self._told = told
        self._reflector = Reflector(
            api,
            RESOURCE_CLAIMS,
            label_selector=f"{node_label(driver)}={label_of(pool)}",
            keep=partial(_kept, driver=driver, pool=pool),
            remember=_identity,
            on_event=self._changed,
        )

    def start(self) -> None:
        """Begin to watch."""
        self._reflector.start()

    def stop(self) -> None:
        """End the watch."""
        self._reflector.stop()

    def _changed(self, change: Change) -> None:
        obj = change.new or change.old
        if obj is None:
            return
        claim = read_claim(obj)
        if change.new is not None and _CUT not in obj:
            self._told(claim)
        devices = expected_devices(claim, driver=self._driver, pool=self._pool)
        names = tuple(d.device for d in devices) if change.new is not None else ()
        places = {"driver": self._driver, "pool": self._pool}
        binding = awaited_devices(obj, **places) if change.new is not None else {}
        made, failed = told_devices(obj, binding, **places)
        wanted = binding.keys() & names
        is_news = self._awaited.note(
            claim.ref,
            frozenset(c.uid for c in claim.reserved_for) if wanted else frozenset(),
            says_made=bool(made),
        )
        self._expect(claim.ref, names)
        if is_news and not failed and made != wanted:
            self._untold(claim.ref, names)


def _identity(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], _IDENTITY)}


def _kept(obj: Obj, *, driver: str, pool: str) -> Obj:
    """Part of a claim that is read: a list holds that of all claims for a moment."""
    metadata = picked(obj["metadata"], _METADATA)
    results = at(obj, "status", "allocation", "devices", "results")
    own = [r for r in results if (r["driver"], r["pool"]) == (driver, pool)]
    if not own:
        return {"metadata": metadata, "status": {}}
    status = obj["status"]
    whole = without_others(status["allocation"], "devices", driver)
    read = trim_allocation(whole, driver)
    told = [d for d in at(status, "devices") if (d["driver"], d["pool"]) == (driver, pool)]
    kept = picked(status, ("reservedFor",)) | {"devices": told}
    kept["allocation"] = {**read, "devices": {**read["devices"], "results": own}}
    cut = len(at(read, "devices", "config")) < len(at(whole, "devices", "config"))
    return {"metadata": metadata, "status": kept} | ({_CUT: True} if cut else {})
