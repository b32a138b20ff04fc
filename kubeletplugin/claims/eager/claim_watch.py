"""Claims that name this node in their label, watched: those alone, whatever else the cluster has.

The label tells which claims to look at. What a claim was given stands in its allocation.
"""

from __future__ import annotations

from collections.abc import Callable

from dra.claims.binding import awaited_devices
from dra.claims.claims import read_claim
from dra.claims.node_label import label_of, node_label
from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.gpu.inventory import ClaimRef
from dra.kube.client.transport import KubeApi
from dra.kube.mirror.reflector import Change, Reflector
from kubeletplugin.claims.prepare.lookup import expected_devices

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


class ClaimWatch:
    """Tells of each claim which devices of ``pool`` it is expected to use, and of none when none.

    ``note_awaited``, before that, hears of its UID whether kube-scheduler waits for them. Both are
    called in the thread of the watch, and must not block.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        driver: str,
        pool: str,
        expect: Callable[[ClaimRef, tuple[str, ...]], None],
        note_awaited: Callable[[str, bool], None],
    ) -> None:
        self._driver = driver
        self._pool = pool
        self._expect = expect
        self._note_awaited = note_awaited
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
        devices = expected_devices(claim, driver=self._driver, pool=self._pool)
        names = tuple(d.device for d in devices) if change.new is not None else ()
        awaited = awaited_devices(obj, driver=self._driver, pool=self._pool)
        self._note_awaited(claim.ref.uid, any(name in awaited for name in names))
        self._expect(claim.ref, names)


def _kept(obj: Obj) -> Obj:
    """Part of a claim that is read, so that a node keeps little of each."""
    status = obj.get("status") or {}
    metadata = {k: v for k, v in obj["metadata"].items() if k in _METADATA}
    kept = {k: status[k] for k in ("allocation", "reservedFor") if k in status}
    return {"metadata": metadata, "status": kept}
