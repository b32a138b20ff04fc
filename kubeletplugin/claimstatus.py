"""``status.devices`` of claims: which slice a claim got, for people and for other programs.

Written in the background by server-side apply: nothing waits for it, and no failure of it fails a
Prepare. Only entries of this driver are touched, and only of the claim with the right UID.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from typing import Any

from dra.inventory import ClaimRef
from dra.kube.errors import ConflictError, KubeError, NotFoundError
from dra.kube.resources import RESOURCE_CLAIMS, Obj
from dra.kube.timing import Backoff, Clock, SystemClock, rfc3339
from dra.kube.transport import KubeApi
from kubeletplugin.entries import Entry, State

_log = logging.getLogger(__name__)
_ATTEMPTS = 8


class ClaimStatuses:
    """One thread that applies the latest wanted status of each claim."""

    def __init__(
        self, api: KubeApi, driver: str, *, clock: Clock | None = None, first_delay: float = 0.2
    ) -> None:
        self._api = api
        self._driver = driver
        self._manager = f"{driver}/kubelet-plugin"
        self._clock = clock or SystemClock()
        self._first_delay = first_delay
        self._condition = threading.Condition()
        self._wanted: dict[str, tuple[ClaimRef, tuple[Entry, ...]]] = {}
        self._busy = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="claim status", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the write that is under way; what is still wanted is given up."""
        with self._condition:
            self._stopping.set()
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def prepared(self, ref: ClaimRef, entries: Sequence[Entry]) -> None:
        """Show these devices as ready, unless the claim shows them already."""
        self._want(ref, tuple(entries))

    def unprepared(self, ref: ClaimRef, entries: Sequence[Entry]) -> None:  # noqa: ARG002 - symmetric
        """Take our entries away; a claim that is gone, or deallocated, has none."""
        self._want(ref, ())

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is left to write."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._wanted and not self._busy, timeout)

    def _want(self, ref: ClaimRef, entries: tuple[Entry, ...]) -> None:
        with self._condition:
            self._wanted[ref.uid] = (ref, entries)
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._wanted or self._stopping.is_set())
                if self._stopping.is_set():
                    return
                ref, entries = self._wanted.pop(next(iter(self._wanted)))
                self._busy = True
            self._write(ref, entries)

    def _write(self, ref: ClaimRef, entries: tuple[Entry, ...]) -> None:
        backoff = Backoff(first=self._first_delay, rng=random.Random())  # noqa: S311 - jitter
        for _ in range(_ATTEMPTS):
            try:
                self._apply(ref, entries)
            except (NotFoundError, ConflictError) as error:
                _log.debug("status of claim %s (UID %s): %s", ref, ref.uid, error)
                return
            except KubeError as error:
                _log.warning("status of claim %s (UID %s): %s", ref, ref.uid, error)
                delay = backoff.next_delay(at_least=error.retry_after)
            else:
                return
            with self._condition:
                if ref.uid in self._wanted:
                    return  # newer wish
            if self._clock.wait(self._stopping, delay):
                return

    def _apply(self, ref: ClaimRef, entries: tuple[Entry, ...]) -> None:
        claim = self._api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        if claim["metadata"]["uid"] != ref.uid:
            return
        shown = {
            (d["pool"], d["device"]): d
            for d in claim.get("status", {}).get("devices", ())
            if d["driver"] == self._driver
        }
        moment = rfc3339(self._clock.now())
        devices = [self._device(e, shown.get((e.pool, e.device)), moment) for e in entries]
        if devices == list(shown.values()):
            return
        body: Obj = {
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": devices},
        }
        self._api.apply(RESOURCE_CLAIMS, body, field_manager=self._manager, subresource="status")

    def _device(self, entry: Entry, shown: Obj | None, moment: str) -> Obj:
        condition = _ready(entry) | {"lastTransitionTime": moment}
        for old in (shown or {}).get("conditions", ()):
            if old["type"] == "Ready" and old["status"] == condition["status"]:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
        return {
            "driver": self._driver,
            "pool": entry.pool,
            "device": entry.device,
            "conditions": [condition],
            "data": device_data(entry),
        }


def _ready(entry: Entry) -> Obj:
    if entry.state is State.LOST:
        return {"type": "Ready", "status": "False", "reason": "Lost", "message": entry.note}
    message = "made, and its CDI spec written"
    return {"type": "Ready", "status": "True", "reason": "Prepared", "message": message}


def device_data(entry: Entry) -> dict[str, Any]:
    """What the status tells of a device beside its name; placement in memory slices."""
    if entry.placement is None:
        return {"uuid": entry.gpu}
    return {
        "profile": entry.profile,
        "parentUUID": entry.gpu,
        "migUUID": entry.mig_uuid,
        "placement": {"start": entry.placement.start, "size": entry.placement.size},
        "gpuInstanceID": entry.gi_id,
        "computeInstanceID": entry.ci_id,
    }
