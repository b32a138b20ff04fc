"""Writes in flight: the claims that they are about, and their results.

One thread decides, others make the requests. What was decided counts from the start, so that the
next decision knows it; what was answered comes back to the thread that decides. While a claim is
being written nothing else is begun with it, so that its writes keep their order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from controller.writing.leader_requests import NotLeadingError
from controller.writing.outbox import SENDERS, Outbox
from dra.common.resources import Obj, ObjectKey

_log = logging.getLogger(__name__)

LIMIT = 2 * SENDERS
"""Upper bound on writes in flight: deciding later means deciding on fresher state."""

WriteJob = Callable[[], Iterator[Obj]]
"""Makes requests one after the other and yields what the API server stored."""


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

    def __init__(self, outbox: Outbox, wake: Callable[[], None]) -> None:
        self._outbox = outbox
        self._wake = wake
        self._claims: set[ObjectKey] = set()
        self._under_way = 0
        self._arrived: deque[_Sent] = deque()

    @property
    def full(self) -> bool:
        """True if nothing else is to be begun before an answer has come."""
        return self._under_way >= LIMIT

    def is_about(self, claims: Iterable[ObjectKey]) -> bool:
        """True if any of ``claims`` is being written."""
        return not self._claims.isdisjoint(claims)

    def start(
        self, claims: Iterable[ObjectKey], job: WriteJob, done: Callable[[WriteAnswer], None]
    ) -> None:
        """Have ``job`` write to ``claims``; ``done`` is called by ``take_answers`` afterwards."""
        sent = _Sent(tuple(claims), done)
        self._claims.update(sent.claims)
        self._under_way += 1
        self._outbox.send(lambda: self._do(sent, job))

    def take_answers(self) -> bool:
        """Take the answers that have come; False when there was none.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        any_arrived = False
        while self._arrived:
            any_arrived = True
            sent = self._arrived.popleft()
            self._under_way -= 1
            self._claims.difference_update(sent.claims)
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
