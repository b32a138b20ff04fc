"""Engine of the controller: the next piece of work, one pod or claim at a time.

No threads, no waiting: the loop around it feeds changes in and calls it. What is written goes to
an outbox, and its answer comes back with the changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.engine.parts import make_parts
from controller.reporting.observer import ControllerObserver
from controller.reporting.report import Reporter
from controller.serving.evaluations import Evaluations
from controller.writing.leader_requests import NotLeadingError
from controller.writing.outbox import Outbox
from controller.writing.writers import Writers
from dra.claims.reader import Reader
from dra.common.resources import ObjectKey
from dra.gpu.layouts import Classes

_log = logging.getLogger(__name__)

_REST_SECONDS = 60.0
"""Time for which a keeper rests that failed in a way nobody foresaw."""


@dataclass(slots=True)
class _Keeper:
    """Something that keeps other objects than claims and pods: one look or write at a time."""

    work_if_due: Callable[[], bool]
    due: Callable[[], float | None]
    rests_until: float = 0.0

    def work(self, now: float) -> bool:
        """Do what is due; what it raises ends nothing but its turn.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        if now < self.rests_until:
            return False
        try:
            return self.work_if_due()
        except NotLeadingError:
            raise
        except Exception:  # noqa: BLE001 - it may be anything
            # One object that we cannot handle must not keep pods from being served.
            _log.exception("objects not kept for a while", extra={"pause": _REST_SECONDS})
            self.rests_until = now + _REST_SECONDS
            return True

    def next_due(self) -> float | None:
        """Monotonic time of its next piece of work, None when there is none."""
        due = self.due()
        return None if due is None else max(due, self.rests_until)


class Engine:
    """The controller's logic. Owned by one thread; ``now`` gives monotonic seconds.

    ``wake`` is called, by any thread, when ``absorb`` has an answer to take. With
    ``finalizer_at_creation`` the API server puts our finalizer on claims, and it stays there. With
    ``node_labels`` nodes get labels that tell of their GPUs. ``class_files`` are those of classes
    of nodes, None where none is configured. ``evaluations`` are for a cluster
    whose kinds have no evaluator of their own.
    """

    def __init__(  # noqa: PLR0913 - what it works on and with
        self,
        cluster: Cluster,
        reader: Reader,
        *,
        writers: Writers,
        outbox: Outbox,
        reporter: Reporter,
        gate: str,
        now: Callable[[], float],
        observer: ControllerObserver | None = None,
        wake: Callable[[], None] = lambda: None,
        finalizer_at_creation: bool = False,
        node_labels: bool = False,
        class_files: Callable[[], Classes | None] | None = None,
        evaluations: Evaluations | None = None,
    ) -> None:
        parts = make_parts(
            cluster,
            reader,
            writers=writers,
            outbox=outbox,
            reporter=reporter,
            gate=gate,
            now=now,
            observer=observer or ControllerObserver(),
            wake=wake,
            finalizer_at_creation=finalizer_at_creation,
            node_labels=node_labels,
            class_files=class_files,
            evaluations=evaluations,
        )
        self._now = now
        self._agenda = parts.agenda
        self._in_flight = parts.in_flight
        self._consequences = parts.consequences
        self._pods = parts.pods
        self._claims = parts.claims
        self._decisions = parts.decisions
        self._failed_gpus = parts.failed_gpus
        self._asking = parts.asking
        self._line = parts.line
        self._retries = parts.retries
        classes, templates, labels = parts.classes, parts.templates, parts.labels
        node_classes, reservations = parts.node_classes, parts.reservations
        self._idle_keeper = _Keeper(lambda: reservations.write_if_due(idle=True), lambda: None)
        self._keepers = (
            _Keeper(classes.work_if_due, lambda: classes.due),
            _Keeper(templates.write_if_due, lambda: templates.due),
            _Keeper(labels.write_if_due, lambda: labels.due),
            _Keeper(node_classes.look_if_due, lambda: node_classes.due),
            _Keeper(reporter.write_if_due, lambda: reporter.due),
            _Keeper(
                lambda: reservations.write_if_due(idle=False),
                lambda: None if parts.in_flight.full else reservations.due,
            ),
        )

    def absorb(self) -> None:
        """Turn answers and the effects of changes into work.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        if self._in_flight.take_answers():
            self._agenda.go_on()
        self._asking.take_answers()
        for key in self._line.look_again():
            self._agenda.add_pod(key)
        self._failed_gpus.expire()
        while self._consequences.take():
            pass

    def work(self) -> bool:
        """Do one piece of work; False when nothing is due, or answers are to be waited for.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        now = self._now()
        if any(keeper.work(now) for keeper in self._keepers):
            return True
        if self._in_flight.full:
            return False
        claim = self._agenda.claims.pop()
        if claim is not None:
            self._attempt(claim, self._claims.look_at, self._retries.retry_claim)
            return True
        return (
            self._go_on_deciding(idle=False)
            or self._look()
            or self._idle_keeper.work(now)
            or self._go_on_deciding(idle=True)
        )

    def next_due(self) -> float | None:
        """The monotonic time of the next piece of work, None when only an answer brings any."""
        times = [keeper.next_due() for keeper in self._keepers]
        times += [self._line.due, self._asking.due, self._failed_gpus.due]
        if not self._in_flight.full:
            times += [self._agenda.claims.next_due(), self._agenda.pods.next_due()]
            times += [self._now()] if self._decisions.are_ongoing else []
        return min((t for t in times if t is not None), default=None)

    def _look(self) -> bool:
        """Look at the next pod; False when none is due."""
        look = self._agenda.pods.pop()
        if look is None:
            return False
        self._attempt(look.key, self._pods.serve, self._retries.retry_pod)
        if self._decisions.is_ongoing(look.key):
            return True  # those alike wait for what it comes to
        pod = self._agenda.waiting_pod(look.key)
        waits = pod is not None and self._agenda.pods.waits(look.key)
        if pod is None or not waits or self._line.is_held_for(pod.uid):
            look.go_on()
        return True

    def _go_on_deciding(self, *, idle: bool) -> bool:
        """Make a part of a decision that takes long; False when it is not the turn of one."""
        key = self._decisions.next_pod(idle=idle)
        if key is None:
            return False
        self._attempt(key, self._pods.serve, self._retries.retry_pod)
        self._decisions.settle(key)
        if not self._decisions.is_ongoing(key):
            # For those alike, and for what was freed while it was decided.
            self._agenda.pods.room_made()
        return True

    def _attempt(
        self,
        key: ObjectKey,
        act: Callable[[ObjectKey], bool],
        settle: Callable[[ObjectKey, Exception | None], object],
    ) -> None:
        """Act on a key; if that begins a write, its answer tells whether it succeeded."""
        try:
            if not act(key):
                settle(key, None)
        except Exception as error:  # noqa: BLE001 - it may be anything
            # One object that we cannot handle must not keep the others from being served.
            settle(key, error)
