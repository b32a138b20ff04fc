"""One replica at a time: leader election over a Lease of coordination.k8s.io.

Nobody compares clocks of different machines. A candidate waits until the record has stayed
unchanged for the holder's lease duration on the candidate's own monotonic clock; a leader stops
after the renew deadline, counted from before it sent its last successful renewal. As the deadline
is shorter than the lease, the old leader has stopped before the next one starts.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dra.common.resources import LEASES, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, KubeError, ObjectNotFoundError
from dra.kube.timing import Clock, SystemClock, rfc3339_micro

LEADERS: Final = "kube-system"
"""Namespace of the leases of leaders: one for all installations of a cluster, and no tenant's."""

_REMEMBERED_ATTEMPTS = 30


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds of an election.

    ``retry_period``: time between two writes of a leader, with up to the share ``jitter`` of it
    added. ``renew_deadline``: time after its last successful write when a leader stops leading;
    more than ``retry_period``. ``lease_duration``: time after which others that saw that write take
    over; more than ``renew_deadline``.
    """

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    jitter: float = 0.2


def leader_lease(driver: str) -> str:
    """Name of the lease of the controller of a driver, whichever installation it is of."""
    return f"{driver}-controller"


class LeaseLock:
    """The lock itself, one attempt at a time; the caller decides when. Not thread-safe.

    ``identity`` names the holder in the record, ``<namespace>/<pod>`` or a name. The lock
    recognises its own record by the times that it wrote, so a twin or an earlier run with the same
    identity counts as somebody else.
    """

    def __init__(  # noqa: PLR0913 - who, what and when
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self.times = times or LeaseTimes()
        self.clock = clock or SystemClock()
        self._lease: Obj | None = None  # as last read or written
        self._observed_at = 0.0  # when its spec was first seen to be like that
        self._own: list[dict[str, Any]] = []  # specs that this lock wrote, or may have written

    def __str__(self) -> str:
        return f"lease {self._namespace}/{self._name}"

    @property
    def holder(self) -> str:
        """Holder of the lease when it was last seen; "" for nobody."""
        return "" if self._lease is None else str(_spec(self._lease).get("holderIdentity") or "")

    @property
    def taken(self) -> bool:
        """True when the lease, as last seen, is somebody else's."""
        return bool(self.holder) and self._lease is not None and not self._is_own(self._lease)

    def try_hold(self) -> float | None:
        """Acquire or renew, with at most a read and a write.

        Returns:
            The monotonic time from which the hold counts, None when another holds the lease.

        Raises:
            KubeError: the server did not answer or refused; whether it wrote is unknown.
        """
        if self._lease is None or not self._is_own(self._lease):
            self._read()
        started = self.clock.monotonic()
        try:
            if self._lease is None:
                spec = self._held_spec(None)
                self._written(self._api.create(LEASES, self._body(spec)))
            elif self._is_own(self._lease) or self._expired(self._lease):
                spec = self._held_spec(_spec(self._lease))
                self._written(self._api.replace(LEASES, self._lease | {"spec": spec}))
            else:
                return None
        except (ConflictError, ObjectNotFoundError):
            # Somebody was faster, or touched the Lease: look at it before the next attempt.
            self._lease = None
            return None
        return started

    def release(self) -> None:
        """Empty the record if it is this lock's, so that others need not wait.

        Raises:
            KubeError: it could not be written; it expires by itself.
        """
        if self._lease is None:
            self._read()
        if self._lease is None or not self._is_own(self._lease):
            return
        now = rfc3339_micro(self.clock.now())
        spec = _spec(self._lease) | {"holderIdentity": "", "renewTime": now, "acquireTime": now}
        try:
            self._observe(self._api.replace(LEASES, self._lease | {"spec": spec}))
        except (ConflictError, ObjectNotFoundError):
            self._lease = None

    def _read(self) -> None:
        try:
            self._observe(self._api.get(LEASES, self._name, namespace=self._namespace))
        except ObjectNotFoundError:
            self._lease = None

    def _observe(self, lease: Obj) -> None:
        known = self._lease
        if known is None or _spec(known) != _spec(lease):
            # After the answer: the holder cannot have written this record any later.
            self._observed_at = self.clock.monotonic()
        self._lease = lease

    def _written(self, lease: Obj) -> None:
        self._observe(lease)
        self._own = [_identifying(_spec(lease))]

    def _is_own(self, lease: Obj) -> bool:
        return _identifying(_spec(lease)) in self._own

    def _expired(self, lease: Obj) -> bool:
        if not self.holder:
            return True
        promised = _spec(lease).get("leaseDurationSeconds") or self.times.lease_duration
        return self.clock.monotonic() - self._observed_at >= promised

    def _held_spec(self, current: dict[str, Any] | None) -> dict[str, Any]:
        now = rfc3339_micro(self.clock.now())
        spec = dict(current or {})
        if current is None or _identifying(current) not in self._own:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(current)
        spec["holderIdentity"] = self.identity
        spec["leaseDurationSeconds"] = self.times.lease_duration
        spec["renewTime"] = now
        # Before sending: a write whose answer is lost is recognised when it is read.
        confirmed, attempts = self._own[:1], self._own[1:]
        self._own = [*confirmed, *attempts[-_REMEMBERED_ATTEMPTS:], _identifying(spec)]
        return spec

    def _body(self, spec: dict[str, Any]) -> Obj:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }


def _spec(lease: Obj) -> dict[str, Any]:
    spec: dict[str, Any] = at(lease, "spec", default={})
    return spec


def _identifying(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: spec.get(key) for key in ("holderIdentity", "acquireTime", "renewTime")}


_log = logging.getLogger(__name__)

_HURRY_SECONDS = 2.0


class LeaderElector:
    """Competes for a lease and runs a callback while it holds it."""

    def __init__(self, lock: LeaseLock) -> None:
        self._lock = lock
        self._times = lock.times
        self._clock = lock.clock
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._held_since: float | None = None  # start of the last successful write while leading
        self._lost: threading.Event | None = None  # the running callback's event
        self._complaint = ""

    @property
    def is_leader(self) -> bool:
        """True while the callback may act. Judged by the clock, not by a thread's progress."""
        with self._guard:
            return self._remaining() > 0

    def run(self, on_started: Callable[[threading.Event], None]) -> None:
        """Compete, and call ``on_started(lost)`` in this thread each time the lease is acquired.

        ``lost`` is set when leadership ends or :meth:`stop` is called; the callback must then
        return soon. After a lost lease the competition starts again. Returns after :meth:`stop`,
        or when the callback returns (or raises) while still leading; the lease is then given back.
        """
        while not self._stopping.is_set():
            held_since = self._attempt()
            if held_since is None:
                self._pause(self._stopping)
            elif not self._lead(on_started, held_since):
                return

    def stop(self) -> None:
        """End the competition, or set the running callback's event. Does not wait. Idempotent."""
        self._stopping.set()
        with self._guard:
            if self._lost is not None:
                self._lost.set()

    def _lead(self, on_started: Callable[[threading.Event], None], held_since: float) -> bool:
        """Run the callback under the lease; True when the competition should go on."""
        lost, done = threading.Event(), threading.Event()
        with self._guard:
            self._held_since, self._lost = held_since, lost
            # A slow answer may have used up the time of the hold.
            if self._stopping.is_set() or self._remaining() <= 0:
                lost.set()
        keepers = [
            threading.Thread(target=target, args=(lost, done), name=name, daemon=True)
            for target, name in ((self._renew, "lease renewal"), (self._guard_deadline, "lease"))
        ]
        for keeper in keepers:
            keeper.start()
        _log.info("%s: %s leads", self._lock, self._lock.identity)
        try:
            on_started(lost)
        finally:
            # Only now may others lead: the callback, which acts as leader, has returned.
            done.set()
            for keeper in keepers:
                # A renewal that hangs in a request must not hold up the end of the program.
                keeper.join(_HURRY_SECONDS if self._stopping.is_set() else None)
            renewing = any(keeper.is_alive() for keeper in keepers)
            with self._guard:
                still_held = self._remaining() > 0
                self._held_since, self._lost = None, None
            if still_held and not renewing:
                self._release()
            elif not still_held:
                _log.warning("%s: %s no longer leads", self._lock, self._lock.identity)
        return not still_held

    def _renew(self, lost: threading.Event, done: threading.Event) -> None:
        """Keep the lease until the callback has returned, even after it was told to stop."""
        while not self._pause(done):
            held_since = self._attempt()
            with self._guard:
                if held_since is not None and self._remaining() > 0:
                    self._held_since = held_since
                elif self._lock.taken:
                    self._held_since = None
                if self._remaining() <= 0:
                    lost.set()
                    return

    def _guard_deadline(self, lost: threading.Event, done: threading.Event) -> None:
        """Declare the lease lost in time even while a renewal hangs."""
        while True:
            with self._guard:
                remaining = self._remaining()
                if remaining <= 0:
                    lost.set()
                    return
            if self._clock.wait(done, remaining):
                return

    def _remaining(self) -> float:
        """Seconds of leadership left without another renewal."""
        if self._held_since is None:
            return 0.0
        return self._held_since + self._times.renew_deadline - self._clock.monotonic()

    def _attempt(self) -> float | None:
        try:
            held_since = self._lock.try_hold()
        except KubeError as error:
            self._complain(f"cannot acquire or renew: {error}", logging.WARNING)
            return None
        if held_since is None and self._lock.taken:
            self._complain(*self._held_by(self._lock.holder))
        elif held_since is not None:
            self._complaint = ""
        return held_since

    def _held_by(self, holder: str) -> tuple[str, int]:
        """Words about who leads; a warning if that is another installation, not another replica."""
        if holder.rpartition("/")[0] == self._lock.identity.rpartition("/")[0]:
            return f"held by {holder}", logging.INFO
        told = "another installation of this driver; this one waits, uninstall one of the two"
        return f"held by {holder}, of {told}", logging.WARNING

    def _complain(self, complaint: str, level: int) -> None:
        # Every attempt of a long wait fails alike: say it once.
        if complaint != self._complaint:
            _log.log(level, "%s: %s", self._lock, complaint)
        self._complaint = complaint

    def _release(self) -> None:
        try:
            self._lock.release()
        except KubeError as error:
            _log.warning("%s: not given back, it expires by itself: %s", self._lock, error)
        else:
            _log.info("%s: given back by %s", self._lock, self._lock.identity)

    def _pause(self, until: threading.Event) -> bool:
        factor = 1 + self._times.jitter * random.random()  # noqa: S311 - no secret
        return self._clock.wait(until, self._times.retry_period * factor)
