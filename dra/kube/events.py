"""Core/v1 Events, so that ``kubectl describe`` tells people why something happened.

Emitting costs a lock and a dictionary entry; one thread sends. An event is a courtesy: it is
dropped and counted rather than allowed to slow down or break what it reports about.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dra.common.cache import BoundedCache
from dra.common.resources import EVENTS, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ObjectNotFoundError, UnavailableError
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock, TokenBucket, rfc3339


class EventSink(Protocol):
    """Taker of events; :class:`dra.kube.events.EventRecorder` is one. Thread-safe."""

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Report about an object (with apiVersion, kind and metadata); never blocks or raises."""


_MESSAGE_BYTES = 1024
_NAME_CHARS = 253
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One thing that happened to one object; equal ones are counted instead of repeated."""

    regarding: tuple[tuple[str, str], ...]
    reason: str
    message: str
    warning: bool

    @classmethod
    def of(cls, regarding: Obj, reason: str, message: str, *, warning: bool) -> Occurrence:
        """Take what identifies the object from its metadata.

        Raises:
            KeyError: the object lacks apiVersion, kind or name.
        """
        meta = regarding["metadata"]
        reference = {
            "apiVersion": regarding["apiVersion"],
            "kind": regarding["kind"],
            "name": meta["name"],
            "namespace": meta.get("namespace") or "",
            "uid": meta.get("uid") or "",
        }
        return cls(
            tuple((key, str(value)) for key, value in reference.items() if value),
            reason,
            cut(message),
            warning,
        )

    @property
    def involved(self) -> dict[str, str]:
        """The event's ``involvedObject``."""
        return dict(self.regarding)

    @property
    def namespace(self) -> str:
        """Namespace of the event: that of its object; ``default`` for cluster-scoped objects."""
        return self.involved.get("namespace") or "default"

    def event_name(self, first: datetime, source: str) -> str:
        """``<object>.<hash>``, unique per occurrence, first time and source."""
        digest = hashlib.sha256(repr((self, first.timestamp(), source)).encode()).hexdigest()
        room = _NAME_CHARS - _DIGEST_CHARS - 1
        return f"{self.involved['name'][:room].rstrip('.-')}.{digest[:_DIGEST_CHARS]}"


def cut(message: str) -> str:
    """At most 1024 bytes, which is what the API server takes for a message."""
    encoded = message.encode()
    if len(encoded) <= _MESSAGE_BYTES:
        return message
    return encoded[: _MESSAGE_BYTES - 3].decode(errors="ignore") + "…"


_log = logging.getLogger(__name__)

_ATTEMPTS = 4
_REMEMBERED = 4096
"""Objects, and events that were sent, of each the most that are remembered."""
_WINDOW_SECONDS = 600.0
"""Time from the last of equal events in which another is counted up instead of repeated."""
_MOST_WAITING = 1000
"""Most different events that wait to be sent; beyond, one of the namespace with most is dropped."""
_BURST, _REFILL_SECONDS = 25, 60.0
"""Different events that an object may have at once; then it may have one in so many seconds."""


@dataclass(slots=True)
class _Waiting:
    first: datetime
    last: datetime
    at: float  # monotonic
    count: int = 1


@dataclass(slots=True)
class _Sent:
    name: str
    count: int
    last_at: float  # monotonic


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Pace of the events of a recorder.

    ``at_once``: events, of all objects together, that are sent without pause. ``pause_seconds``:
    time between later ones. ``delay_seconds``: age that an event has to reach before it is sent, so
    that the work that it reports on reaches the API server first.
    """

    at_once: int = 20
    pause_seconds: float = 0.05
    delay_seconds: float = 0.0


class EventRecorder:
    """Sends events in the background. Thread-safe; no method raises.

    ``component`` and ``host`` (the node, or "") become the event's source.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        component: str,
        host: str = "",
        limits: EventLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._api = api
        self._component = component
        self._host = host
        self._limits = limits or EventLimits()
        self._clock = clock or SystemClock()
        self._backoff = Backoff(first=0.5, limit=5.0)
        self._of_object: BoundedCache[Hashable, TokenBucket] = BoundedCache(_REMEMBERED)
        self._of_all = TokenBucket(self._limits.at_once, self._limits.pause_seconds)
        self._hurried = threading.Event()
        # Used by the sending thread only.
        self._sent: BoundedCache[Occurrence, _Sent] = BoundedCache(_REMEMBERED)
        self._changed = threading.Condition()
        # By namespace, whose turn comes first.
        self._waiting: dict[str, dict[Occurrence, _Waiting]] = {}
        self._sending = False
        self._started = False
        self._closed = False
        self._dropped = 0
        self._loop = Loop("events", self._send_next, clock=self._clock)

    @property
    def dropped(self) -> int:
        """Number of events given up: too many at once, refused, or no server."""
        with self._changed:
            return self._dropped

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Report about an object (with apiVersion, kind and metadata); never blocks or raises.

        ``reason`` is CamelCase for machines, ``message`` a sentence for people, cut to 1024 bytes.
        """
        try:
            occurrence = Occurrence.of(regarding, reason, message, warning=warning)
            now = self._clock.now()
            at = self._clock.monotonic()
        except Exception:  # noqa: BLE001 - the caller's work matters more than its report
            _log.exception("event %r is about nothing that can be named", reason)
            self._drop()
            return
        with self._changed:
            if waiting := self._waiting.get(occurrence.namespace, {}).get(occurrence):
                waiting.count += 1
                waiting.last = now
                return
            bucket = self._of_object.get(
                occurrence.regarding, lambda: TokenBucket(_BURST, _REFILL_SECONDS)
            )
            if self._closed or not bucket.take(at):
                self._drop()
                return
            waiting = _Waiting(first=now, last=now, at=at)
            self._waiting.setdefault(occurrence.namespace, {})[occurrence] = waiting
            if self._number() > _MOST_WAITING:
                largest = max(self._waiting, key=lambda name: len(self._waiting[name]))
                del self._waiting[largest][next(iter(self._waiting[largest]))]
                if not self._waiting[largest]:
                    del self._waiting[largest]
                self._drop()
            if not self._started:
                self._started = True
                self._loop.start()
        self._loop.notify()

    def flush(self, timeout: float) -> bool:
        """Wait until everything emitted is sent or given up; False when the time was too short.

        Events are sent without pauses meanwhile.
        """
        self._hurried.set()
        try:
            with self._changed:
                return self._changed.wait_for(
                    lambda: not self._waiting and not self._sending, timeout=timeout
                )
        finally:
            self._hurried.clear()

    def close(self, timeout: float = 2.0) -> None:
        """Flush for at most ``timeout`` seconds, then stop; what is left or comes later is dropped.

        Idempotent.
        """
        self.flush(timeout)
        with self._changed:
            self._closed = True
            self._dropped += self._number()
            self._waiting.clear()
            self._changed.notify_all()
        self._loop.stop()

    def _number(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _take(self) -> tuple[Occurrence, _Waiting]:
        """Take the oldest event of the first namespace in line; that namespace then comes last."""
        namespace, own = next(iter(self._waiting.items()))
        del self._waiting[namespace]
        occurrence = next(iter(own))
        waiting = own.pop(occurrence)
        if own:
            self._waiting[namespace] = own
        return occurrence, waiting

    def _drop(self) -> None:
        with self._changed:  # re-entrant: Condition's default lock is an RLock
            self._dropped += 1

    def _send_next(self) -> float | None:
        """Send the next event. Returns 0 for the next turn at once, None when no event waits."""
        if not self._keep_pace():
            return None
        with self._changed:
            if not self._waiting:
                return None
            occurrence, waiting = self._take()
            self._sending = True
        try:
            self._send_patiently(occurrence, waiting)
        except Exception as error:  # noqa: BLE001 - dropped and counted, not tried again
            self._drop()
            # The first, then ever more rarely: a missing permission fails every event.
            loud = self.dropped & (self.dropped - 1) == 0
            _log.log(
                logging.WARNING if loud else logging.DEBUG,
                "event %s about %s not recorded (%d dropped so far): %s",
                occurrence.reason,
                occurrence.involved["name"],
                self.dropped,
                error,
            )
        finally:
            with self._changed:
                self._sending = False
                self._changed.notify_all()
        return 0.0

    def _keep_pace(self) -> bool:
        """Pause until the next event may be sent; returns False if none waits.

        Does not pause while :meth:`flush` waits.
        """
        with self._changed:
            heads = (next(iter(own.values())) for own in self._waiting.values())
            oldest = next(heads, None)
        if oldest is None:
            return False
        if not self._loop.is_stopping():
            wait = oldest.at + self._limits.delay_seconds - self._clock.monotonic()
            if wait > 0:
                self._clock.wait(self._hurried, wait)
        while not self._hurried.is_set() and not self._loop.is_stopping():
            if self._of_all.take(self._clock.monotonic()):
                break
            self._clock.wait(self._hurried, self._limits.pause_seconds)
        return True

    def _send_patiently(self, occurrence: Occurrence, waiting: _Waiting) -> None:
        self._backoff.reset()
        while True:
            try:
                return self._send(occurrence, waiting)
            except UnavailableError as error:
                delay = self._backoff.next_delay(at_least=error.retry_after)
                if self._backoff.failures >= _ATTEMPTS or self._loop.pause(delay):
                    raise

    def _send(self, occurrence: Occurrence, waiting: _Waiting) -> None:
        now = self._clock.monotonic()
        sent = self._sent.find(occurrence)
        if sent is not None and now - sent.last_at < _WINDOW_SECONDS:
            count = sent.count + waiting.count
            try:
                self._api.patch(
                    EVENTS,
                    sent.name,
                    {"count": count, "lastTimestamp": rfc3339(waiting.last)},
                    namespace=occurrence.namespace,
                )
            except ObjectNotFoundError:
                pass  # Events expire on the server, after an hour by default.
            else:
                self._sent.put(occurrence, _Sent(sent.name, count, now))
                return
        body = self._event(occurrence, waiting)
        # The name is this event's alone: if it exists, an earlier attempt's answer was lost.
        with contextlib.suppress(AlreadyExistsError):
            self._api.create(EVENTS, body)
        self._sent.put(occurrence, _Sent(body["metadata"]["name"], waiting.count, now))

    def _event(self, occurrence: Occurrence, waiting: _Waiting) -> Obj:
        source = {"component": self._component, "host": self._host}
        instance = self._host or self._component
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": occurrence.event_name(waiting.first, f"{self._component}/{self._host}"),
                "namespace": occurrence.namespace,
            },
            "involvedObject": occurrence.involved,
            "type": "Warning" if occurrence.warning else "Normal",
            "reason": occurrence.reason,
            "message": occurrence.message,
            "count": waiting.count,
            "firstTimestamp": rfc3339(waiting.first),
            "lastTimestamp": rfc3339(waiting.last),
            "source": {key: value for key, value in source.items() if value},
            "reportingComponent": self._component,
            "reportingInstance": instance,
        }
