"""Writes in flight: the claims that they are about, and their results.

One thread decides, others make the requests. What was decided counts from the start, so that the
next decision knows it; what was answered comes back to the thread that decides. While a claim is
being written nothing else is begun with it, so that its writes keep their order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from controller.write.requests import NotLeadingError
from dra.common.resources import Obj, ObjectKey

_log = logging.getLogger(__name__)

SENDERS = 8
"""Threads: enough for 200 writes a second on an API server that takes 40 ms for each."""

LIMIT = 2 * SENDERS
"""Upper bound on writes in flight: deciding later means deciding on fresher state."""

Send = Callable[[Callable[[], None]], None]
"""Has a job, which does not raise, done by some thread."""

WriteJob = Callable[[], Iterator[Obj]]
"""Makes requests one after the other and yields what the API server stored."""


class Senders:
    """Threads that make requests; jobs start in the order in which they were sent."""

    def __init__(self, count: int = SENDERS) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="write")

    def send(self, job: Callable[[], None]) -> None:
        self._pool.submit(job)

    def close(self) -> None:
        """Wait for the jobs that were begun; the others are dropped. Nothing is sent afterwards."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True)
class WriteAnswer:
    """Objects that were stored, in order, and what ended the job early, if anything did."""

    written: list[Obj] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    claims: tuple[ObjectKey, ...]
    done: Callable[[WriteAnswer], None]
    answer: WriteAnswer = field(default_factory=WriteAnswer)


class InFlight:
    """Owned by the thread that decides; ``wake`` is called by others when there is an answer."""

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
        """Take the answers that have come; False when there was none.

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


class OneWrite:
    """Writes of a keeper, of which one at a time is under way."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self.is_under_way = False

    @property
    def may_begin(self) -> bool:
        return not self.is_under_way and not self._in_flight.full

    def begin(self, job: Callable[[], Iterator[Obj]], done: Callable[[WriteAnswer], None]) -> None:
        """Have other threads make the requests of ``job``; ``done`` takes the answer."""

        def answered(answer: WriteAnswer) -> None:
            self.is_under_way = False
            done(answer)

        self.is_under_way = True
        self._in_flight.start((), job, answered)
