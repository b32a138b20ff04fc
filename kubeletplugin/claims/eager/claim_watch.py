"""Claims that name this node in their label, watched: those alone, whatever else the cluster has.

The label tells which claims to look at. What a claim was given stands in its allocation.
"""

from __future__ import annotations

from collections.abc import Callable

from dra.claims.binding import awaited_devices, told_devices
from dra.claims.claims import Claim, read_claim
from dra.claims.node_label import label_of, node_label
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client.transport import KubeApi
from dra.kube.mirror.reflector import Change, Reflector
from kubeletplugin.claims.eager.awaited_claims import AwaitedClaims
from kubeletplugin.claims.prepare.lookup import expected_devices

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


class ClaimWatch:
    """Tells of each claim which devices of ``pool`` it is expected to use, and of none when none.

    ``awaited`` hears, before that, whether kube-scheduler waits for them, and ``untold``, after it,
    that the claim's status does not say of them what that waits for. ``told`` hears of the claim
    itself, first of all. All are called in the thread of the watch, and must not block.
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
            keep=_kept,
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
        if change.new is not None:
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


def _kept(obj: Obj) -> Obj:
    """Part of a claim that is read, so that a node keeps little of each."""
    status = obj.get("status") or {}
    metadata = {k: v for k, v in obj["metadata"].items() if k in _METADATA}
    kept = {k: status[k] for k in ("allocation", "reservedFor", "devices") if k in status}
    return {"metadata": metadata, "status": kept}
