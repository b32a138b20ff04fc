"""``status.devices`` of claims: which slice a claim got, for people and for other programs.

Written in the background by server-side apply: nothing waits for it, and no failure of it fails a
Prepare. Only entries of this driver are touched, and only of the claim with the right UID.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dra.claims.allocation import read_allocation
from dra.claims.claims import Claim, read_claim
from dra.claims.conditions import PREPARE_FAILED, awaited_devices
from dra.claims.trimming import AllocatedClaim
from dra.common.resources import RESOURCE_CLAIMS, Obj, at
from dra.gpu.inventory import ClaimRef
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, KubeError, ObjectNotFoundError
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock, rfc3339
from kubeletplugin.gpus.health.device_health import DeviceProblem
from kubeletplugin.journal.entries import Entry
from kubeletplugin.publishing.claim_devices import (
    failed_devices,
    present_device,
    refused_device,
    with_time,
)
from kubeletplugin.telemetry.logfields import about

_log = logging.getLogger(__name__)
_ATTEMPTS = 8
_GATHER_SECONDS = 0.02
"""Wishes of a claim in that time are written as one, the last."""
_AGAIN_SECONDS = 5.0
_KNOWN_SECONDS = 5.0
_MOST_KNOWN = 64
_Wish = Callable[[Obj], "list[Obj]"]
"""From the claim as it is to our devices as they are to be shown, their conditions without time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """Wish of a claim, to be written at the monotonic time ``due``.

    ``awaited``: somebody waits for it, so that it is never given up. ``attempts`` of it
    were refused.
    """

    ref: ClaimRef
    wish: _Wish
    due: float
    awaited: bool = False
    attempts: int = 0
    backoff: Backoff | None = None


class ClaimStatuses:
    """Writer with one thread, which applies the latest wanted status of each claim.

    ``seen`` gets every claim that it looks at. ``later`` has ``thread.notify`` called when other
    changes of the node are told of, by which time kubelet has its answer; for a wish that somebody
    waits for it is called at once. It is called without a lock.
    """

    def __init__(  # noqa: PLR0913 - what it writes with, and who listens
        self,
        api: KubeApi,
        driver: str,
        *,
        later: Callable[[], None],
        problem: Callable[[Entry], DeviceProblem | None] = lambda _: None,
        clock: Clock | None = None,
        first_delay: float = 0.2,
        seen: Callable[[Claim], None] = lambda _: None,
    ) -> None:
        self._seen = seen
        self._later = later
        self._api = api
        self._driver = driver
        self._problem = problem
        self._manager = f"{driver}/kubelet-plugin"
        self._clock = clock or SystemClock()
        self._first_delay = first_delay
        self._condition = threading.Condition()
        self._wanted: dict[str, _Wanted] = {}
        self._known: dict[str, tuple[Obj, float]] = {}
        self._shown: set[str] = set()
        self._busy = False
        self.thread = Loop("claim status", self._turn, backoff=Backoff(limit=1.0), clock=clock)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """End the thread after the write that is under way; further wishes are given up."""
        self.thread.stop()
        self.thread.join()

    def know(self, claim: Obj) -> None:
        """Take a claim as it was just read, so that it need not be read again to be written to."""
        with self._condition:
            self._known.pop(claim["metadata"]["uid"], None)
            self._known[claim["metadata"]["uid"]] = (claim, self._clock.monotonic())
            while len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def show_devices(self, ref: ClaimRef, entries: Sequence[Entry]) -> None:
        """Show these devices as they are, ready or not."""
        self.refresh(ref, lambda: entries)

    def refresh(self, ref: ClaimRef, read: Callable[[], Iterable[Entry]]) -> None:
        """Show the devices that ``read`` gives at the time of writing."""
        self._want(ref, lambda claim: self._present(claim, read()))

    def show_made(self, ref: ClaimRef, read: Callable[[], Iterable[Entry]]) -> None:
        """The same, while kube-scheduler waits for it."""
        self._want(ref, lambda claim: self._present(claim, read()), awaited=True)

    def show_overdue(self, ref: ClaimRef, read: Callable[[], Iterable[Entry]]) -> None:
        """The same, where kubelet should have asked for them by now: of those it has not."""
        self._want(ref, lambda claim: self._present(claim, read(), overdue=True))

    def show_refused(self, ref: ClaimRef, message: str, *, pool: str) -> None:
        """Tell kube-scheduler that slices for which it waits cannot be made."""

        def wish(claim: Obj) -> list[Obj]:
            awaited = awaited_devices(claim, driver=self._driver, pool=pool)
            return [
                refused_device(self._driver, name, binding, pool=pool, message=message)
                for name, binding in awaited.items()
            ]

        self._want(ref, wish, awaited=True)

    def show_failure(
        self, ref: ClaimRef, message: str, *, pool: str, reason: str = PREPARE_FAILED
    ) -> None:
        """Show the devices that the claim was given in ``pool`` as not prepared for ``reason``."""
        self._want(
            ref,
            lambda claim: failed_devices(
                self._driver, read_claim(claim), pool=pool, message=message, reason=reason
            ),
        )

    def withdraw(self, ref: ClaimRef) -> None:
        """Take our entries away from a claim that may be deallocated, and then has none."""
        self._want(ref, lambda _: [])

    def clear(self, ref: ClaimRef) -> None:
        """Take our entries away; a claim that is gone, or deallocated, has none."""
        self._want(ref, _nothing)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is left to write."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._wanted and not self._busy, timeout)

    def _present(self, claim: Obj, entries: Iterable[Entry], *, overdue: bool = False) -> list[Obj]:
        """Those of the entries that the claim still has."""
        found = at(claim, "status", "allocation", default=None)
        given = () if found is None else read_allocation(found).of_driver(self._driver)
        places = {(d.pool, d.device) for d in given}
        shown = []
        for entry in entries:
            if (entry.pool, entry.device) not in places:
                continue
            awaited = awaited_devices(claim, driver=self._driver, pool=entry.pool)
            problem, binding = self._problem(entry), awaited.get(entry.device)
            shown.append(present_device(self._driver, entry, problem, binding, overdue=overdue))
        return shown

    def _want(self, ref: ClaimRef, wish: _Wish, *, awaited: bool = False) -> None:
        due = self._clock.monotonic() + _GATHER_SECONDS
        with self._condition:
            self._wanted[ref.uid] = _Wanted(ref, wish, due, awaited=awaited)
        if awaited:
            self.thread.notify()
        else:
            self._later()

    def _turn(self) -> float | None:
        with self._condition:
            if not self._wanted:
                return None
            wanted = min(self._wanted.values(), key=lambda each: each.due)
            wait = wanted.due - self._clock.monotonic()
            if wait > _GATHER_SECONDS:
                return wait
        if wait > 0:
            self.thread.pause(wait)
        with self._condition:
            wanted = self._wanted.pop(wanted.ref.uid)
            self._busy = True
        try:
            self._write(wanted)
        except Exception as error:
            ref = wanted.ref
            error.add_note(f"while writing the status of claim {ref} (UID {ref.uid})")
            raise
        finally:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
        return 0.0

    def _write(self, wanted: _Wanted) -> None:
        ref = wanted.ref
        try:
            self._apply(ref, wanted.wish)
        except (ObjectNotFoundError, ConflictError) as error:
            _log.debug("status not written", extra=about(ref, error=str(error)))
        except KubeError as error:
            _log.warning("status not written yet", extra=about(ref, error=str(error)))
            self._put_back(wanted, error)

    def _put_back(self, wanted: _Wanted, error: KubeError) -> None:
        """Have it tried again later, unless there is a newer wish; others go in between.

        What the server refuses again and again is given up; without its answer nothing is.
        """
        backoff = wanted.backoff or Backoff(first=self._first_delay)
        delay = backoff.next_delay(at_least=error.retry_after)
        attempts = wanted.attempts + error.is_final
        if attempts >= _ATTEMPTS:
            if not wanted.awaited:
                return
            attempts, delay = 0, _AGAIN_SECONDS
            backoff.reset()
        due = self._clock.monotonic() + delay
        again = replace(wanted, due=due, attempts=attempts, backoff=backoff)
        with self._condition:
            self._wanted.setdefault(wanted.ref.uid, again)

    def _apply(self, ref: ClaimRef, wish: _Wish) -> None:
        if wish is _nothing and ref.uid in self._shown:
            self._send(ref, [])  # with its UID: what replaced it is refused
            return
        claim = self._take_known(ref)
        if claim is None:
            found = self._api.get_as(
                AllocatedClaim, RESOURCE_CLAIMS, ref.name, namespace=ref.namespace
            )
            claim = found.as_object(self._driver)
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
            with_time(d, shown.get((d["pool"], d["device"], d.get("shareID"))), moment)
            for d in wish(claim)
        ]
        if devices == list(shown.values()):
            return
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

    def _take_known(self, ref: ClaimRef) -> Obj | None:
        with self._condition:
            claim, read = self._known.pop(ref.uid, (None, 0.0))
        return claim if self._clock.monotonic() - read < _KNOWN_SECONDS else None


def _nothing(_claim: Obj) -> list[Obj]:
    """Wish of a claim that has no device of ours any more."""
    return []
