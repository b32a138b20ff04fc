"""Reservations in the MigNodes: one write for each node, of its whole list.

A write names the list that it replaces. A late write of a former leader therefore fails, or brings
reservations that this leader sees. Reservations of former leaders stay for a while, so that pods
can take them over, and are then removed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from api.errors import InvalidObjectError
from api.mignode import MOST_RESERVATIONS
from controller import times
from controller.cluster.claims import newer
from controller.cluster.cluster import Cluster, SpecReservations
from controller.cluster.records import Effects
from controller.write.in_flight import InFlight, WriteAnswer, one
from controller.write.requests import Requests
from dra.common.resources import Obj
from dra.gpu.inventory import MOST_RESERVED_DEVICES, Reservation
from dra.gpu.mignode import reservation_fields, reservations_of
from dra.kube.errors import ConflictError, ForbiddenError, ObjectNotFoundError
from dra.kube.timing import Backoff

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    reservation: Reservation
    until: float = inf


@dataclass(slots=True)
class _Node:
    """Reservations of one node. Times are monotonic.

    ``entries``: by id, the reservations that its MigNode is to have.
    ``due``: the time to write them. ``last``: the list as stored by our last write.
    """

    entries: dict[str, _Entry] = field(default_factory=dict)
    due: float = inf
    is_under_way: bool = False
    last: SpecReservations | None = None
    pause: Backoff = field(default_factory=lambda: times.growing(times.RESERVING_AGAIN))


class Reservations:
    """Reservations of one leadership. ``now`` gives monotonic seconds. Not thread-safe.

    ``is_denied``: the controller may not write MigNodes, so that nothing can be reserved.
    """

    def __init__(
        self,
        cluster: Cluster,
        requests: Requests,
        in_flight: InFlight,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._requests = requests
        self._in_flight = in_flight
        self._now = now
        self._mark = secrets.token_hex(8)
        self._count = 0
        self._nodes: dict[str, _Node] = {}
        self._others: dict[str, tuple[str, Reservation]] = {}
        self.is_denied = False

    def new_id(self) -> str:
        self._count += 1
        return f"{self._mark}-{self._count}"

    def has_room(self, node: str, devices: int) -> bool:
        """True if so many more ``devices`` of one claim may be reserved on a node."""
        entries = self._nodes[node].entries.values() if node in self._nodes else ()
        taken = sum(len(e.reservation.devices) for e in entries)
        return len(entries) < MOST_RESERVATIONS and taken + devices <= MOST_RESERVED_DEVICES

    def add(self, node: str, reservations: Iterable[Reservation]) -> None:
        """Have slices reserved; a former leader's reservations with the same ids are taken over."""
        known = self._nodes.setdefault(node, _Node())
        for reservation in reservations:
            self._others.pop(reservation.claim.uid, None)
            known.entries[reservation.id] = _Entry(reservation)
        known.due = self._now()

    def drop(self, node: str, ids: Iterable[str], *, at_once: bool) -> None:
        """Have reservations removed, at once or with the next write within a few seconds."""
        known = self._nodes.get(node)
        if known is None:  # the MigNode is gone
            return
        until = self._now() + (0.0 if at_once else times.RESERVED_LINGERS)
        for each in ids:
            if each in known.entries:
                known.entries[each].until = until
        known.due = min(known.due, until)

    def others(self, claim_uid: str) -> tuple[str, Reservation] | None:
        """Node and reservation of a former leader for a claim; None without one."""
        return self._others.get(claim_uid)

    def note(self, effects: Effects) -> None:
        for name in effects.reserved:
            seen = self._cluster.reserved(name)
            if seen is None:
                self._nodes.pop(name, None)
                continue
            known = self._nodes.get(name)
            if known is not None:
                known.due = self._now()  # somebody else may have removed our entries
            for reservation in _read(name, seen.fields):
                if reservation.id.startswith(self._mark):
                    continue
                known = known or self._nodes.setdefault(name, _Node())
                if reservation.id not in known.entries:
                    until = self._now() + times.RESERVED_BY_OTHERS
                    known.entries[reservation.id] = _Entry(reservation, until)
                    self._others[reservation.claim.uid] = (name, reservation)
                    known.due = min(known.due, until)

    @property
    def due(self) -> float:
        """The monotonic time of the next write; inf if there is none before an answer.

        Writes that have just become due wait for a moment, so that they include what is decided
        next.
        """
        return self._next()[0] + times.RESERVED_GATHERS

    def work(self) -> None:
        """Begin the write of one node."""
        _, name = self._next()
        self._write(name, self._nodes[name])

    def work_if_idle(self) -> bool:
        """Begin a write without waiting for more, as no pod is to be looked at now.

        Returns False if none is due.
        """
        is_due = self._next()[0] <= self._now()
        if is_due:
            self.work()
        return is_due

    def _next(self) -> tuple[float, str]:
        """The node to be written next, and when; inf if none is before an answer."""
        if not self._nodes or self.is_denied or self._in_flight.full:
            return inf, ""
        open_ = ((n.due, name) for name, n in self._nodes.items() if not n.is_under_way)
        return min(open_, default=(inf, ""))

    def _write(self, name: str, node: _Node) -> None:
        soon = self._now() + times.RESERVED_LINGERS / 2
        for over in [e.reservation for e in node.entries.values() if e.until <= soon]:
            del node.entries[over.id]
            if self._others.get(over.claim.uid) == (name, over):
                del self._others[over.claim.uid]
        node.due = min((e.until for e in node.entries.values()), default=inf)
        before = self._before(name, node)
        wanted = reservation_fields(e.reservation for e in node.entries.values())
        if before is None or before.fields == wanted:
            if not node.entries:
                del self._nodes[name]
            return
        node.is_under_way = True
        job = one(self._requests.reserve, name, before.fields, wanted)
        self._in_flight.start((), job, lambda answer: self._answered(name, node, answer))

    def _before(self, name: str, node: _Node) -> SpecReservations | None:
        """The list in the MigNode, by the mirror or by our last write; None without a MigNode."""
        seen = self._cluster.reserved(name)
        if seen is None or node.last is None or newer(seen.version, node.last.version):
            return seen
        return node.last

    def _answered(self, name: str, node: _Node, answer: WriteAnswer) -> None:
        node.is_under_way = False
        match answer.error:
            case None:
                node.last = SpecReservations.of(answer.written[0])
                node.pause.reset()
                return
            case ForbiddenError():
                self.is_denied = True
                _log.error(
                    "slices are not made before claims are allocated: let the controller patch "
                    "mignodes.mig.dra.dev, as the chart does (%s)",
                    answer.error,
                )
                return
            case ConflictError() | ObjectNotFoundError():
                node.last = None
            case _:
                fields = {"node": name, "error": str(answer.error)}
                _log.warning("what is reserved was not written; trying again", extra=fields)
        node.pause.fail(self._now())
        node.due = min(node.due, node.pause.until)


def _read(name: str, fields: list[Obj]) -> tuple[Reservation, ...]:
    if not fields:
        return ()
    spec = {"driver": "", "pool": "", "allocator": "", "reservations": fields}
    try:
        return reservations_of({"metadata": {"name": name}, "spec": spec})
    except InvalidObjectError as error:
        _log.warning("what is reserved on %s cannot be read: %s", name, error)
        return ()
