"""Writes in flight: the claims that they are about, and their answers.

One thread decides, others make the requests. A decision counts from the start, so that the next one
is made with it; the answers come back to the deciding thread. While a claim is being written, no
other write to it is begun, so that its writes keep their order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Generic, ParamSpec, TypeVar

from controller import times
from controller.worklist import WorkList
from controller.write.requests import NotLeadingError
from dra.common.resources import Obj, ObjectKey

_log = logging.getLogger(__name__)

SENDERS = 8
"""Number of threads: enough for 200 writes a second if the API server takes 40 ms for each."""

LIMIT = 2 * SENDERS
"""Upper bound on writes in flight; beyond it decisions wait, and are made on fresher state."""

K = TypeVar("K", bound=Hashable)
P = ParamSpec("P")

Send = Callable[[Callable[[], None]], None]
"""Function that has another thread do a job; the job must not raise."""

WriteJob = Callable[[], Iterator[Obj]]
"""Function that makes requests one by one, and yields the objects that were stored."""


def one(request: Callable[P, Obj], *args: P.args, **kwargs: P.kwargs) -> WriteJob:
    """A job that makes a single request."""

    def job() -> Iterator[Obj]:
        yield request(*args, **kwargs)

    return job


class Senders:
    """Threads that make requests; jobs start in the order in which they were sent."""

    def __init__(self, count: int = SENDERS) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="write")

    def send(self, job: Callable[[], None]) -> None:
        self._pool.submit(job)

    def close(self) -> None:
        """Wait for the jobs that were begun, and drop the others. Nothing is sent afterwards."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class WriteAnswer:
    """Objects that were stored, in order, and the error that ended the job early, if any."""

    written: list[Obj] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    claims: tuple[ObjectKey, ...]
    done: Callable[[WriteAnswer], None]
    answer: WriteAnswer = field(default_factory=WriteAnswer)


class InFlight:
    """The writes in flight. Owned by the thread that decides.

    ``send``: has another thread do a job. ``wake``: called by that thread when an answer has come.
    """

    def __init__(self, send: Send, wake: Callable[[], None] = lambda: None) -> None:
        self._send = send
        self._wake = wake
        self._claims: set[ObjectKey] = set()
        self._under_way = 0
        self._arrived: deque[_Sent] = deque()

    @property
    def full(self) -> bool:
        """True if nothing else is to be begun before an answer has come."""
        return self._under_way >= LIMIT

    def is_about(self, claims: Iterable[ObjectKey]) -> bool:
        return not self._claims.isdisjoint(claims)

    def start(
        self, claims: Iterable[ObjectKey], job: WriteJob, done: Callable[[WriteAnswer], None]
    ) -> None:
        """Have ``job`` write to ``claims``; ``done`` is called by ``take_answers`` afterwards."""
        sent = _Sent(tuple(claims), done)
        self._claims.update(sent.claims)
        self._under_way += 1
        self._send(lambda: self._do(sent, job))

    def take_answers(self) -> bool:
        """Take the answers that have come; returns False if there was none.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        any_arrived = bool(self._arrived)
        while self._arrived:
            sent = self._arrived.popleft()
            self._under_way -= 1
            self._claims.difference_update(sent.claims)
            if isinstance(sent.answer.error, NotLeadingError):
                raise sent.answer.error
            try:
                sent.done(sent.answer)
            except NotLeadingError:
                raise
            except Exception:  # noqa: BLE001 - logged; it may be anything
                # One answer that we cannot handle must not keep the others from being served.
                _log.exception("an answer was not understood", extra={"claims": sent.claims})
        return any_arrived

    def _do(self, sent: _Sent, job: WriteJob) -> None:
        try:
            for obj in job():
                sent.answer.written.append(obj)
        except Exception as error:  # noqa: BLE001 - handed over to whoever asked for the job
            sent.answer.error = error
        self._arrived.append(sent)
        self._wake()


class KeptObjects(Generic[K]):
    """Keys of objects of a kind that are to be looked at; one write is under way at a time.

    An object whose write was refused rests, while others are written. ``group`` as of ``WorkList``.
    """

    def __init__(
        self,
        kind: str,
        in_flight: InFlight,
        now: Callable[[], float],
        *,
        group: Callable[[K], str] = lambda _: "",
    ) -> None:
        self._kind = kind
        self._in_flight = in_flight
        self._keys: WorkList[K] = WorkList(now, group=group, pauses=times.KEEPING_AGAIN)
        self.is_under_way = False

    @property
    def may_begin(self) -> bool:
        return not self.is_under_way and not self._in_flight.full

    @property
    def due(self) -> float:
        """The monotonic time of the next look; inf if there is none before an answer."""
        return inf if self.is_under_way or self._in_flight.full else self._keys.due

    def add(self, key: K, order: int = 0, *, at: float | None = None) -> None:
        """Have an object looked at, at once or at a time, but not before its rest is over."""
        rests = self._keys.rests_until(key)
        self._keys.add(key, order, at=rests if at is None else max(at, rests))

    def discard(self, key: K) -> None:
        self._keys.discard(key)
        self._keys.forget_failure(key)

    def next(self) -> K | None:
        """The key of the object to look at now; None if none is due or may be written."""
        return self._keys.pop() if self._keys and self.may_begin else None

    def begin(self, job: WriteJob, done: Callable[[WriteAnswer], None]) -> None:
        """Have other threads make the requests of ``job``; ``done`` takes the answer."""

        def answered(answer: WriteAnswer) -> None:
            self.is_under_way = False
            done(answer)

        self.is_under_way = True
        self._in_flight.start((), job, answered)

    def write(self, key: K, job: WriteJob, done: Callable[[Obj], None]) -> None:
        """Have ``job`` write an object; ``done`` takes the object as it was stored last."""

        def answered(answer: WriteAnswer) -> None:
            if answer.error is None:
                self._keys.forget_failure(key)
                done(answer.written[-1])
                _log.info("%s written", self._kind, extra={"object": key})
            else:
                self.refused(key, answer.error)

        self.begin(job, answered)

    def refused(self, key: K, error: Exception) -> None:
        """Have an object rest after an ``error``, and looked at again afterwards."""
        pause = self._keys.retry(key, 1)
        fields = {"object": key, "pause": pause, "error": str(error)}
        _log.warning("%s not written; trying again", self._kind, extra=fields)
