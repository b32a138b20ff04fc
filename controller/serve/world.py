"""World of the rules: what they look into, and the only place that begins writes and sets times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import AlikePods, PodRecord
from controller.options import Options
from controller.queue.agenda import Agenda, urgency
from controller.queue.line import WaitingLine
from controller.queue.refusals import Refusals
from controller.queue.searches import Decisions, FailedSearches, Room
from controller.report.report import Reporter
from controller.serve.evaluations import ClaimSelectors, Evaluations
from controller.serve.reservations import Reservations
from controller.write.claims import ClaimWriter
from controller.write.in_flight import InFlight, WriteAnswer, WriteJob, one
from controller.write.requests import NotLeadingError, RefusedError
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem, examine
from dra.cel.offers import UnansweredError
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim, Reader
from dra.claims.reasons import Obstacle, Reason
from dra.common.cache import BoundedCache
from dra.common.resources import Obj, ObjectKey
from dra.gpu.inventory import ClaimRef
from dra.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    ObjectNotFoundError,
    UnavailableError,
)
from dra.kube.timing import TokenBucket
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)


class Look(NamedTuple):
    """The pod is looked at again at the monotonic time ``at``; the next rules are asked now."""

    at: float


class Wait(NamedTuple):
    """The pod waits: it is told ``why``, if given, and looked at when room is made for its group.

    At the latest at the monotonic time ``at``, and after a minute. Without a ``group`` room is
    nothing to it. ``claims`` are told, too.
    """

    why: Obstacle | None
    claims: Iterable[ClaimRef] = ()
    group: Hashable | None = None
    at: float | None = None


class Done(NamedTuple):
    """Nothing is left to do for the pod in this look."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write by ``job`` to ``claims``, whose answer ``done`` takes.

    What it ``counts`` for from the start: the allocation of each claim, None where it loses what it
    has. If it is about a claim of the pod nothing else is done for that in this look.
    """

    claims: tuple[ObjectKey, ...]
    job: WriteJob
    done: Callable[[WriteAnswer], None]
    counts: tuple[tuple[ClaimRef, Allocation | None], ...] = ()


Act = Look | Wait | Done | Write

DONE = Done()

LABELS_AT_ONCE = 8

_NO_WEBHOOK = "failed calling webhook"
"""Words of the API server (500) where a webhook that has to admit a write does not answer
(``ErrCallingWebhook``)."""

_TEMPLATES = 4096
"""Upper bound on the templates of pods of which it is known how another driver serves them."""


@dataclass(slots=True)
class LabelPace:
    """Pace of the writes that only name the node of a claim in its label; times are monotonic.

    ``at_once`` lets some through that follow an allocation; others wait until pods come slowly.
    """

    at_once: TokenBucket = field(
        default_factory=lambda: TokenBucket(LABELS_AT_ONCE, times.LABEL_AT_ONCE)
    )
    last_allocation: float = float("-inf")
    last: float = float("-inf")


@dataclass(slots=True)
class Nominating:
    """The pod that kube-scheduler was told of last, or is being told of."""

    is_under_way: bool = False
    priority: int = 0
    at: float = float("-inf")


@dataclass(slots=True)
class RoomPlans:
    """Plans of who leaves so that others have room, of all pods; times are monotonic.

    Somebody is ``moving`` for a pod, and a plan is being made for the UID ``planned``; the next one
    is ``not_before``. ``in_vain`` are kinds of pods for which nobody's leaving makes room, until
    when. A pod may be moved for each of ``slots`` that is over.
    """

    slots: list[float]
    moving: PodRecord | None = None
    planned: str = ""
    not_before: float = float("-inf")
    in_vain: BoundedCache[Hashable, float] = field(default_factory=lambda: BoundedCache(_TEMPLATES))


class World:
    """All that one leadership knows and works with. Owned by the thread that decides.

    ``now`` gives monotonic seconds. Without ``evaluations`` the kinds of the cluster have an
    evaluator of their own.
    """

    def __init__(  # noqa: PLR0913 - what is made elsewhere
        self,
        cluster: Cluster,
        writer: ClaimWriter,
        in_flight: InFlight,
        reporter: Reporter,
        options: Options,
        *,
        now: Callable[[], float],
        evaluations: Evaluations | None = None,
    ) -> None:
        self.cluster = cluster
        self.writer = writer
        self.requests = writer.requests
        self.in_flight = in_flight
        self.reporter = reporter
        self.options = options
        self.now = now
        self.evaluations = evaluations
        self.reader = Reader(cluster.driver, cluster.fleet.kinds, cluster.classes)
        self.allocator = Allocator(cluster.fleet, cluster.hosts)
        self.agenda = Agenda(cluster, now)
        self.decisions = Decisions(now)
        self.line = WaitingLine(cluster, self.allocator, reporter, self.decisions, now=now)
        self.refusals = Refusals(cluster, now)
        self.room = Room()
        self.failed = FailedSearches(self.room, now)
        self.labels = LabelPace()
        self.nominating = Nominating()
        most = options.moves_per_hour
        # As if the former leader had moved as many in the last hour, one after the other.
        self.rooms = RoomPlans([now() + times.HOUR * (n + 1) / most for n in range(most)])
        self.gangs_rest_until = float("-inf")
        """Monotonic time before which no gang is decided, so that others have their turn."""
        self.alike: BoundedCache[str, AlikePods] = BoundedCache(_TEMPLATES)
        self.reservations = Reservations(cluster, self.requests, in_flight, now=now)

    # -- what rules ask

    def examined(self, record: PodRecord) -> Problem | None:
        """The problem of what a pod lacks; None where it lacks nothing, or cannot be served.

        Raises:
            UnansweredError: a selector is still to be evaluated.
        """
        if record.examined is None:
            record.examined = examine(record.pod, self.cluster, self.reader)
        found = record.examined.found
        return found if isinstance(found, Problem) else None

    def claims_of(self, pod: Pod) -> Iterator[KnownClaim]:
        claims = self.cluster.claims
        return (claims[key] for key in pod.claim_keys if key in claims)

    def claim_write(
        self,
        known: KnownClaim,
        write: Callable[[Claim], Obj],
        then: Callable[[], None] = lambda: None,
    ) -> Write:
        """One write that takes something from a claim; ``then`` is called when it did."""
        cluster, claim = self.cluster, known.claim

        def done(answer: WriteAnswer) -> None:
            for obj in answer.written:
                cluster.confirm_claim(obj)
            cluster.end_write(claim.ref)
            if answer.error is None:
                then()
            self.claim_answered(claim.ref.key, answer.error)

        return Write((claim.ref.key,), one(write, claim), done, ((claim.ref, None),))

    # -- what the loop does with their answers

    def take(self, pod: Pod, act: Act) -> bool:
        """Do what a rule says; True if nothing else is to be done for ``pod`` in this look."""
        match act:
            case Look(at):
                self.agenda.add_pod(pod.key, at=at)
                return False
            case Wait():
                self._wait(pod, act)
                return True
            case Write():
                self.begin(act)
                return not set(pod.claim_keys).isdisjoint(act.claims)
        return True

    def begin(self, write: Write) -> None:
        """Begin a write: what it is about counts from now on."""
        for claim, allocation in write.counts:
            self.cluster.begin_write(claim, allocation)
        self.in_flight.start(write.claims, write.job, write.done)

    def _wait(self, pod: Pod, wait: Wait) -> None:
        cluster = self.cluster
        if wait.why is not None:
            fleet, claims = cluster.fleet, cluster.claims
            if fleet.nodes or not fleet.schedulers or pod.gates:  # else kube-scheduler says why
                known = (claims[ref.key] for ref in wait.claims if ref.key in claims)
                self.reporter.waiting(pod, wait.why, known)
        ends = (wait.at, self.refusals.next_end(cluster.pod_index.template(pod)))
        at = min((end for end in ends if end is not None), default=float("inf"))
        self.agenda.wait(pod, wait.group, at=min(at, self.now() + times.WAITING_POD_AGAIN))

    def ask(self, pod: Pod, error: UnansweredError) -> None:
        """Have evaluated what a decision for ``pod`` needs; it is made once all is answered.

        Raises:
            UnansweredError: ``error``, as nobody is there to be asked.
        """
        if self.evaluations is None:
            raise error
        claims = [known.claim for known in self.claims_of(pod)]
        asked = (ClaimSelectors(c.ref, self.reader.expressions(c), c.views) for c in claims)
        obstacle = self.evaluations.ask(pod, asked, error.question)
        if obstacle is None:
            self.agenda.add_pod(pod.key, at=self.now() + times.EVALUATION_TOLD)
        else:
            self.line.leaves(pod.uid)
            self._wait(pod, Wait(obstacle, [claim.ref for claim in claims]))

    # -- what came of writes and of looks

    def pod_answered(self, key: ObjectKey, error: Exception | None) -> None:
        """A pod's write was answered; changes that came meanwhile are looked at next.

        Raises:
            NotLeadingError: that is what went wrong.
        """
        if error is not None:
            self.agenda.let_rest(key, is_claim=False)
        self.pod_looked_at(key, error)

    def pod_looked_at(self, key: ObjectKey, error: Exception | None) -> None:
        """A look at a pod has ended; with an ``error`` it is tried again after a pause.

        Raises:
            NotLeadingError: that is what went wrong.
        """
        pod = self.cluster.pods.get(key)
        if error is not None:
            self._tell_error(key, error, pod)
        if error is None or pod is None:  # gone: nobody is left to fail
            self.agenda.changed.forget_failure(key)
        else:
            self.agenda.changed.retry(key, urgency(pod))

    def claim_answered(self, key: ObjectKey, error: Exception | None) -> None:
        """A write to a claim was answered; its pods may wait for that.

        Raises:
            NotLeadingError: that is what went wrong.
        """
        if error is not None:
            self.agenda.let_rest(key, is_claim=True)
        pause = self.claim_looked_at(key, error)
        for pod in self.cluster.pod_index.of_claim(key) if error is not None else ():
            self.agenda.add_pod(pod.key, at=self.now() + pause)

    def claim_looked_at(self, key: ObjectKey, error: Exception | None) -> float:
        """A look at a claim has ended; returns the seconds until it is tried again, if it failed.

        Raises:
            NotLeadingError: that is what went wrong.
        """
        if error is None:
            self.agenda.claims.forget_failure(key)
            return 0.0
        self._tell_error(key, error, None)
        return self.agenda.claims.retry(key, 0)

    def _tell_error(self, key: ObjectKey, error: Exception, pod: Pod | None) -> None:
        fields = {"key": "/".join(key), "error": str(error)}
        match error:
            case NotLeadingError():
                raise error
            case ObjectNotFoundError():
                _log.info("gone meanwhile", extra=fields)
            case RefusedError():
                self._refused(str(error), fields, pod)
            case UnavailableError(message=words) if _NO_WEBHOOK not in words:
                _log.warning("write failed", extra=fields)
            case InvalidError() | ForbiddenError() | UnavailableError():
                self._refused(f"the API server refuses the write: {error}", fields, pod)
            case ConflictError():
                _log.info("changed meanwhile", extra=fields)
            case KubeError():
                _log.warning("write failed", extra=fields)
            case _:
                _log.error("failed; trying again later", extra=fields, exc_info=error)
                if pod is not None:
                    self.line.leaves(pod.uid)

    def _refused(self, message: str, fields: Obj, pod: Pod | None) -> None:
        _log.error("write refused", extra={**fields, "error": message})
        if pod is not None:
            self.line.leaves(pod.uid)
            self.reporter.waiting(pod, Obstacle(Reason.REFUSED, message), self.claims_of(pod))
