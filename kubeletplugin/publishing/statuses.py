"""Writer of ``status.devices`` of claims, which shows a claim's devices and their state.

It writes in the background by server-side apply: no Prepare waits for it or fails by it. Only
entries of this driver are changed, and only in the claim with the right UID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dra.claims.allocation import read_allocation
from dra.claims.claims import read_claim
from dra.claims.conditions import (
    MADE,
    PREPARE_FAILED,
    PREPARED,
    READY,
    Binding,
    awaited_devices,
)
from dra.claims.reasons import SPACED, NodeReason
from dra.claims.stored import StoredClaim
from dra.common.resources import RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import ClaimRef, GpuReason
from dra.kube.errors import ConflictError, InvalidError, KubeError, ObjectNotFoundError
from dra.kube.timing import rfc3339
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.gpus.health import DeviceProblem
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.publishing.writer import Writer
from kubeletplugin.telemetry.observer import about

_log = logging.getLogger(__name__)
_ATTEMPTS = 8
_MOST_KNOWN = 64
_MOST_TEXT = 1000
_Wish = Callable[[Obj], "list[Obj]"]
"""Function from a claim to our wanted entries of ``status.devices``; conditions have no times."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Wanted status of a claim.

    ``awaited``: kube-scheduler waits for it, so it is never given up. ``refusals``: number of
    writes that the API server refused; those without an answer do not count.
    """

    ref: ClaimRef
    wish: _Wish
    awaited: bool = False
    refusals: int = 0


class ClaimStatuses(Writer):
    """Writer with one thread, which applies the latest wanted status of each claim.

    Devices are shown as the journal has them at the time of writing. ``problem``: returns the
    problem of an entry's device. Statuses are written together with other changes of the node,
    after kubelet has its answer; those for which kube-scheduler waits are written at once.
    """

    def __init__(
        self, common: Common, *, problem: Callable[[Entry], DeviceProblem | None] = lambda _: None
    ) -> None:
        super().__init__("claim status", clock=common.clock)
        self._seen = common.telemetry.claims.see
        self._later = common.changed
        self._api = common.api
        self._journal = common.journal
        self._driver = common.options.driver_name
        self._pool = common.options.pool
        self._problem = problem
        self._reports = common.reports
        self._manager = f"{self._driver}/kubelet-plugin"
        self._wishes: dict[str, _Wanted] = {}
        self._known: dict[str, tuple[Obj, float]] = {}
        self._shown: set[str] = set()

    def know(self, claim: Obj) -> None:
        """Take a claim that was just read, to save reading it again before a write."""
        with self._lock:
            self._known.pop(claim["metadata"]["uid"], None)
            self._known[claim["metadata"]["uid"]] = (claim, self._clock.monotonic())
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def show(self, ref: ClaimRef, *, awaited: bool = False) -> None:
        """Show the devices of a claim in their present state.

        ``awaited``: kube-scheduler waits for this status.
        """
        self._want(ref, self._present, awaited=awaited)

    def show_refused(self, ref: ClaimRef, message: str) -> None:
        """Tell kube-scheduler that slices for which it waits cannot be made."""

        def wish(claim: Obj) -> list[Obj]:
            awaited = awaited_devices(claim, driver=self._driver, pool=self._pool)
            return [
                _device(
                    self._driver,
                    self._pool,
                    device,
                    [
                        _condition(name, "True", GpuReason.CREATION_FAILED, message)
                        for name in binding.failed
                    ],
                )
                for device, binding in awaited.items()
            ]

        self._want(ref, wish, awaited=True)

    def show_failure(self, ref: ClaimRef, message: str, *, reason: str = PREPARE_FAILED) -> None:
        """Show the devices of this node that are allocated to a claim as not ready."""

        def wish(claim: Obj) -> list[Obj]:
            allocation = read_claim(claim).allocation
            ours = allocation.of_driver(self._driver) if allocation else ()
            failed = [_condition(READY, "False", reason, message)]
            return [
                _device(self._driver, d.pool, d.device, failed, share_id=d.share_id)
                for d in ours
                if d.pool == self._pool
            ]

        self._want(ref, wish)

    def withdraw(self, ref: ClaimRef) -> None:
        """Remove our entries from a claim's status, which is read first: it may have none."""
        self._want(ref, lambda _: [])

    def clear(self, ref: ClaimRef) -> None:
        """Remove our entries from a claim's status; the claim may be gone or deallocated."""
        self._want(ref, _nothing)

    def _present(self, claim: Obj) -> list[Obj]:
        """Entries of the claim's devices that are made and still allocated to the claim."""
        found = at(claim, "status", "allocation", default=None)
        given = () if found is None else read_allocation(found).of_driver(self._driver)
        places = {(d.pool, d.device) for d in given}
        shown = []
        for entry in self._journal.of_claim(claim["metadata"]["uid"]):
            is_made = entry.state in HELD or entry.early
            if not is_made or (entry.pool, entry.device) not in places:
                continue
            awaited = awaited_devices(claim, driver=self._driver, pool=entry.pool)
            problem, binding = self._problem(entry), awaited.get(entry.device)
            shown.append(present_device(self._driver, entry, problem, binding))
        return shown

    def _want(self, ref: ClaimRef, wish: _Wish, *, awaited: bool = False) -> None:
        with self._lock:
            self._wishes[ref.uid] = _Wanted(ref, wish, awaited=awaited)
        self.want(ref.uid, after=times.STATUS_GATHER_SECONDS, anew=True)
        if awaited:
            self.thread.notify()
        else:
            self._later()

    def _write(self, key: str) -> float | None:
        with self._lock:
            wanted = self._wishes.pop(key, None)
        if wanted is None:
            return None
        ref = wanted.ref
        try:
            self._apply(ref, wanted.wish)
        except (ObjectNotFoundError, ConflictError) as error:
            _log.debug("status not written", extra=about(ref, error=str(error)))
        except InvalidError as error:
            if "immutable" not in error.message:
                return self._put_back(wanted, error)
            self._reports.report_device(
                ref, NodeReason.STATUS_REFUSED, f"{SPACED} ({error.message})", warning=True
            )
        except KubeError as error:
            return self._put_back(wanted, error)
        except Exception as error:
            error.add_note(f"while writing the status of claim {ref} (UID {ref.uid})")
            raise
        return None

    def _put_back(self, wanted: _Wanted, error: KubeError) -> float | None:
        """Have a failed write tried again, unless there is a newer wish for the claim.

        After ``_ATTEMPTS`` refusals it is given up, or, if kube-scheduler waits for it, tried again
        in as many seconds as are returned.
        """
        refusals = wanted.refusals + error.is_final
        is_over = refusals >= _ATTEMPTS
        if is_over and not wanted.awaited:
            return None
        again = replace(wanted, refusals=0 if is_over else refusals)
        with self._lock:
            self._wishes.setdefault(wanted.ref.uid, again)
        if is_over:
            return times.STATUS_AGAIN_SECONDS
        raise error

    def _apply(self, ref: ClaimRef, wish: _Wish) -> None:
        if wish is _nothing and ref.uid in self._shown:
            self._send(ref, [])  # the API server refuses it if the UID is another's
            return
        with self._lock:
            claim, read = self._known.pop(ref.uid, (None, 0.0))
        if claim is None or self._clock.monotonic() - read >= times.STATUS_KNOWN_SECONDS:
            found = self._api.get_as(
                StoredClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace
            )
            claim = found.allocated(self._driver)
            if claim["metadata"]["uid"] != ref.uid:
                return
            self._seen(read_claim(claim))
        shown = {
            (d["pool"], d["device"], d.get("shareID")): d
            for d in claim.get("status", {}).get("devices", ())
            if d["driver"] == self._driver
        }
        moment = rfc3339(self._clock.now())
        devices = [
            _with_time(d, shown.get((d["pool"], d["device"], d.get("shareID"))), moment)
            for d in wish(claim)
        ]
        if devices != list(shown.values()):
            self._send(ref, devices)

    def _send(self, ref: ClaimRef, devices: list[Obj]) -> None:
        self._shown.discard(ref.uid)
        body: Obj = {
            "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
            "status": {"devices": devices},
        }
        self._api.apply(
            RESOURCE_CLAIMS,
            body,
            field_manager=self._manager,
            subresource="status",
            metadata_only=True,
        )
        if devices:
            self._shown.add(ref.uid)


def _nothing(_claim: Obj) -> list[Obj]:
    """Wish for a claim that has no device of ours any more."""
    return []


def present_device(
    driver: str,
    entry: Entry,
    problem: DeviceProblem | None,
    binding: Binding | None = None,
) -> Obj:
    """The entry of ``status.devices`` for a device; its conditions have no times yet.

    It has the condition Ready once kubelet has asked for it. ``binding``: conditions for which
    kube-scheduler waits.
    """
    conditions = [] if entry.early else [_readiness(entry, problem)]
    if binding is not None and entry.state in {State.CI_CREATED, State.PREPARED}:
        conditions += [
            _condition(name, "True", MADE, "the slice is there") for name in binding.made
        ]
    device = _device(driver, entry.pool, entry.device, conditions, share_id=entry.share_id)
    return {**device, "data": _data(entry)}


def _device(
    driver: str, pool: str, device: str, conditions: list[Obj], *, share_id: str | None = None
) -> Obj:
    shared = {"shareID": share_id} if share_id else {}
    return {"driver": driver, "pool": pool, "device": device, **shared, "conditions": conditions}


def _with_time(device: Obj, shown: Obj | None, moment: str) -> Obj:
    """The device with times of transition in its conditions.

    A condition with the same status in ``shown``, the device as the claim's status has it, keeps
    its time; others get ``moment``, the present time (RFC 3339).
    """
    times_shown = {
        (c["type"], c["status"]): c["lastTransitionTime"]
        for c in (shown or {}).get("conditions", ())
    }
    conditions = [
        {**c, "lastTransitionTime": times_shown.get((c["type"], c["status"]), moment)}
        for c in device["conditions"]
    ]
    return {**device, "conditions": conditions}


def _readiness(entry: Entry, problem: DeviceProblem | None) -> Obj:
    if problem is not None:
        return _condition(READY, "False", problem.reason, problem.message)
    if entry.state is State.LOST:
        return _condition(READY, "False", GpuReason.SLICE_LOST, entry.note)
    return _condition(READY, "True", PREPARED, "made, and its CDI spec written")


def _data(entry: Entry) -> dict[str, Any]:
    """Field ``data`` of a device in the status; the placement is in memory slices."""
    share: dict[str, Any] = {}
    if entry.share is not None:
        share = {"share": {"memoryMiB": entry.share.memory_mib, "cores": entry.share.cores}}
    if entry.placement is None:
        return {"uuid": entry.gpu, **share}
    return {
        "profile": entry.profile,
        "parentUUID": entry.gpu,
        "migUUID": entry.mig_uuid,
        "placement": {"start": entry.placement.start, "size": entry.placement.size},
        "gpuInstanceID": entry.gi_id,
        "computeInstanceID": entry.ci_id,
        **share,
    }


def _condition(kind: str, status: str, reason: str, message: str) -> Obj:
    return {"type": kind, "status": status, "reason": reason, "message": message[:_MOST_TEXT]}
