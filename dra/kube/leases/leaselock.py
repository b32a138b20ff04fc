"""One replica at a time: leader election over a Lease of coordination.k8s.io.

Nobody compares clocks of different machines. A candidate waits until the record has stayed
unchanged for the holder's lease duration on the candidate's own monotonic clock; a leader stops
after the renew deadline, counted from before it sent its last successful renewal. As the deadline
is shorter than the lease, the old leader has stopped before the next one starts.

What a leader sent may arrive after it has stopped. Only one that knows better gives the lease back
``settled``, with the annotation ``SETTLED`` beside the empty holder, and the next one is told. Its
value is the record's ``leaseTransitions``, which grow with each new holder: a mark that a holder
left who does not know of it, such as an older version, says nothing about that holder. An empty
holder alone says nothing either; an administrator may have made it.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from dra.common.resources import LEASES, Obj, Resource, at
from dra.kube.errors import ConflictError, ObjectNotFoundError
from dra.kube.timing import Clock, rfc3339_micro

SETTLED = "mig.dra.dev/settled"
"""Annotation of a Lease: nothing is on its way that its holders sent up to that transition."""

_REMEMBERED_ATTEMPTS = 30


class LeaseApi(Protocol):
    """The three requests that an election makes; :class:`KubeApi` has them."""

    def get(self, resource: Resource, name: str, *, namespace: str = "") -> Obj:
        """Read the Lease."""

    def create(self, resource: Resource, body: Obj, *, field_manager: str = "") -> Obj:
        """Create the Lease."""

    def replace(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        """Write the Lease, refused when it changed since it was read."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds of an election.

    A leader writes every ``retry_period``; it stops leading ``renew_deadline`` after its last
    successful write; others take over ``lease_duration`` after they saw that write.
    """

    lease_duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        longest_pause = self.retry_period * (1 + self.jitter)
        if not 0 < longest_pause < self.renew_deadline < self.lease_duration:
            raise ValueError(
                "lease times must satisfy retry_period * (1 + jitter) < renew_deadline < "
                f"lease_duration, got {self}"
            )


class LeaseLock:
    """The lock itself, one attempt at a time; the caller decides when. Not thread-safe.

    ``identity`` names the holder in the record. The lock recognises its own record by the times
    that it wrote, so a twin or an earlier run with the same identity counts as somebody else.

    Attributes:
        settled: the last ``try_hold`` took a lease that was given back settled. Not so after a
            renewal, and not when the answer was lost, whatever came of it.
        takes: how often this lock tried to take the lease rather than renew it. As long as that
            stays the same, nobody else has held the lease in between.
    """

    def __init__(  # noqa: PLR0913 - who, what and when
        self,
        api: LeaseApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes,
        clock: Clock,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times
        self._clock = clock
        self._lease: Obj | None = None  # as last read or written
        self._observed_at = 0.0  # when its spec was first seen to be like that
        self._own: list[dict[str, Any]] = []  # specs that this lock wrote, or may have written
        self.settled = False
        self.takes = 0

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
        self.settled = False
        if self._lease is None or not self._is_own(self._lease):
            self._read()
        started = self._clock.monotonic()
        try:
            if self._lease is None:
                self.takes += 1
                spec = self._held_spec(None)
                self._written(self._api.create(LEASES, self._body(spec)))
            elif self._is_own(self._lease):
                self._replace(self._lease, self._held_spec(_spec(self._lease)))
            elif self._expired(self._lease):
                self.takes += 1
                settled = _is_settled(self._lease)
                self._replace(self._lease, self._held_spec(_spec(self._lease)))
                self.settled = settled
            else:
                return None
        except (ConflictError, ObjectNotFoundError):
            # Somebody was faster, or touched the Lease: look at it before the next attempt.
            self._lease = None
            return None
        return started

    def release(self, *, settled: bool = False) -> None:
        """Empty the record if it is this lock's, so that others need not wait.

        ``settled``: nothing that this or an earlier holder sent can arrive any more.

        Raises:
            KubeError: it could not be written; it expires by itself.
        """
        if self._lease is None:
            self._read()
        if self._lease is None or not self._is_own(self._lease):
            return
        now = rfc3339_micro(self._clock.now())
        spec = _spec(self._lease) | {"holderIdentity": "", "renewTime": now, "acquireTime": now}
        try:
            self._observe(self._api.replace(LEASES, _body_of(self._lease, spec, settled=settled)))
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
            self._observed_at = self._clock.monotonic()
        self._lease = lease

    def _replace(self, lease: Obj, spec: dict[str, Any]) -> None:
        self._written(self._api.replace(LEASES, _body_of(lease, spec, settled=False)))

    def _written(self, lease: Obj) -> None:
        self._observe(lease)
        self._own = [_identifying(_spec(lease))]

    def _is_own(self, lease: Obj) -> bool:
        return _identifying(_spec(lease)) in self._own

    def _expired(self, lease: Obj) -> bool:
        if not self.holder:
            return True
        promised = _spec(lease).get("leaseDurationSeconds") or self._times.lease_duration
        return self._clock.monotonic() - self._observed_at >= promised

    def _held_spec(self, current: dict[str, Any] | None) -> dict[str, Any]:
        now = rfc3339_micro(self._clock.now())
        spec = dict(current or {})
        if current is None or _identifying(current) not in self._own:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + bool(current)
        spec["holderIdentity"] = self._identity
        spec["leaseDurationSeconds"] = self._times.lease_duration
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


def _body_of(lease: Obj, spec: dict[str, Any], *, settled: bool) -> Obj:
    """The Lease with another record, and with the mark of a settled one or without."""
    metadata = dict(lease["metadata"])
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(SETTLED, None)
    if settled:
        annotations[SETTLED] = _transitions(spec)
    if annotations:
        metadata["annotations"] = annotations
    return lease | {"metadata": metadata, "spec": spec}


def _is_settled(lease: Obj) -> bool:
    """True if the last holder gave the lease back, and said that nothing is on its way."""
    spec, annotations = _spec(lease), at(lease, "metadata", "annotations", default={})
    return not spec.get("holderIdentity") and annotations.get(SETTLED) == _transitions(spec)


def _transitions(spec: dict[str, Any]) -> str:
    return str(spec.get("leaseTransitions") or 0)
