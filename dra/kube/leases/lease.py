"""Leader election for a program: waits, leads, renews in the background, gives the lease back.

The lock and the reasoning why two can never lead at once are in :mod:`dra.kube.leases.leaselock`,
as is what a lease that is given back settled says to the next leader.
"""

import logging
import random
import threading
from collections.abc import Callable

from dra.kube.errors import KubeError
from dra.kube.leases.leaselock import LeaseApi, LeaseLock, LeaseTimes
from dra.kube.timing import Clock, SystemClock

__all__ = ["LeaderElector", "LeaseApi", "LeaseTimes"]

_log = logging.getLogger(__name__)

_HURRY_SECONDS = 2.0


class LeaderElector:
    """Competes for the Lease ``namespace/name`` and runs a callback while it holds it.

    ``identity`` is what others read as the holder, for example the pod's name.
    """

    def __init__(  # noqa: PLR0913 - the Lease, and the seams of its tests
        self,
        api: LeaseApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._times = times or LeaseTimes()
        self._clock = clock or SystemClock()
        self._rng = random.Random()  # noqa: S311 - jitter, not a secret
        self._lock = LeaseLock(
            api,
            namespace=namespace,
            name=name,
            identity=identity,
            times=self._times,
            clock=self._clock,
        )
        self._what = f"lease {namespace}/{name}"
        self._identity = identity
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._held_since: float | None = None  # start of the last successful write while leading
        self._lost: threading.Event | None = None  # the running callback's event
        self._took_settled = False
        self._settled = False
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
        or when the callback returns (or raises) while still leading; the lease is then given back,
        settled if the callback has called :meth:`settle`.
        """
        while not self._stopping.is_set():
            held_since = self._attempt()
            if held_since is None:
                self._pause(self._stopping)
            elif not self._lead(on_started, held_since):
                return

    @property
    def settled(self) -> bool:
        """True if, when this term began, nothing of earlier leaders could arrive any more.

        True only for a term that began with a lease that was given back settled: not with one that
        ran out, did not exist, was emptied by somebody else or was this program's own already.
        """
        return self._took_settled

    def settle(self) -> None:
        """For the callback, before it returns: nothing of this or an earlier term can arrive."""
        self._settled = True

    def stop(self) -> None:
        """End the competition, or set the running callback's event. Does not wait. Idempotent."""
        self._stopping.set()
        with self._guard:
            if self._lost is not None:
                self._lost.set()

    def _lead(self, on_started: Callable[[threading.Event], None], held_since: float) -> bool:
        """Run the callback under the lease; True when the competition should go on."""
        lost, done = threading.Event(), threading.Event()
        takes = self._lock.takes
        self._took_settled, self._settled = self._lock.settled, False
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
        _log.info("%s: %s leads", self._what, self._identity)
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
                # Who took the lease anew meanwhile cannot speak for whoever held it in between.
                self._release(settled=self._settled and self._lock.takes == takes)
            elif not still_held:
                _log.warning("%s: %s no longer leads", self._what, self._identity)
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
            self._complain(f"held by {self._lock.holder}", logging.INFO)
        elif held_since is not None:
            self._complaint = ""
        return held_since

    def _complain(self, complaint: str, level: int) -> None:
        # Every attempt of a long wait fails alike: say it once.
        if complaint != self._complaint:
            _log.log(level, "%s: %s", self._what, complaint)
        self._complaint = complaint

    def _release(self, *, settled: bool) -> None:
        try:
            self._lock.release(settled=settled)
        except KubeError as error:
            _log.warning("%s: not given back, it expires by itself: %s", self._what, error)
        else:
            how = ", settled" if settled else ""
            _log.info("%s: given back by %s%s", self._what, self._identity, how)

    def _pause(self, until: threading.Event) -> bool:
        factor = 1 + self._times.jitter * self._rng.random()
        return self._clock.wait(until, self._times.retry_period * factor)
