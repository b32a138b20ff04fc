"""World of the rules: all that they read, and the only code that begins writes and sets times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import PodRecord
from controller.options import Options
from controller.queue.agenda import Agenda
from controller.queue.line import WaitingLine
from controller.queue.refusals import Refusals
from controller.queue.refused import Refused
from controller.queue.searches import Decisions
from controller.report.report import Reporter
from controller.serve.evaluations import ClaimSelectors, Evaluations
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
from dra.kube.timing import Backoff, TokenBucket
from dra.pods.pods import Pod, urgency

_log = logging.getLogger(__name__)


class Look(NamedTuple):
    """Act: look at the pod again at the monotonic time ``at``, and ask the next rules now."""

    at: float


class Wait(NamedTuple):
    """Act: have the pod wait.

    ``why``: the obstacle that the pod is told, if given; ``claims``: claims that are told it too.
    ``group``: a pod of each group is looked at when room is made; None: room does not help it.
    ``at``: the monotonic time of the next look at the latest; there is one after a minute anyway.
    """

    why: Obstacle | None
    claims: Iterable[ClaimRef] = ()
    group: Hashable | None = None
    at: float | None = None


class Done(NamedTuple):
    """Act: do nothing more for the pod in this look."""


@dataclass(frozen=True, slots=True)
class Write:
    """Act: begin a write by ``job``. If it is to a claim of the pod, the look at the pod ends.

    ``claims``: the claims that are written to. ``done``: takes the answer.
    ``counts``: by claim, the allocation that counts from the start; None if the write removes
    something from the claim.
    """

    claims: tuple[ObjectKey, ...]
    job: WriteJob
    done: Callable[[WriteAnswer], None]
    counts: tuple[tuple[ClaimRef, Allocation | None], ...] = ()


Act = Look | Wait | Done | Write

DONE = Done()

LABELS_AT_ONCE = 8

_NO_WEBHOOK = "failed calling webhook"
"""Words in the API server's error (500) if a webhook that has to admit a write does not answer
(``ErrCallingWebhook``)."""

_TEMPLATES = 4096
"""Upper bound on the templates of pods, and kinds of pods, about which something is kept."""


@dataclass(slots=True)
class LabelPace:
    """Pace of the writes that only put the label with its node on a claim. Times are monotonic.

    ``at_once``: limits the labels that are written right after allocations. Others wait until the
    burst of allocations is over.
    ``last_allocation``: when allocations were last written.
    ``last``: the time that was given to the last of the labels that wait.
    """

    at_once: TokenBucket = field(
        default_factory=lambda: TokenBucket(LABELS_AT_ONCE, times.LABEL_AT_ONCE)
    )
    last_allocation: float = float("-inf")
    last: float = float("-inf")


@dataclass(slots=True)
class Nominating:
    """The last nomination: the pod's priority, when it ended, and True while it is written."""

    is_under_way: bool = False
    priority: int = 0
    at: float = float("-inf")


@dataclass(slots=True)
class Evicted:
    """Pods of one template that were evicted, as their slices could not be made.

    ``at``: creation time of the newest pod at the eviction from which the pause counts: of one
    clock, the API server's. Pods that were made before it are evicted without the pause.
    """

    pause: Backoff = field(default_factory=lambda: times.growing(times.EVICTION_AGAIN))
    at: str = ""


@dataclass(slots=True)
class RoomPlans:
    """Plans to make room for pods, common to all pods. Times are monotonic.

    ``slots``: one time for each move that is allowed in an hour; a pod may be moved when one of
    them has passed.
    ``moving``: the pod for which others are being moved.
    ``planned``: UID of the pod for which a plan was made last, or is being made.
    ``not_before``: the time before which no further plan is begun.
    """

    slots: list[float]
    moving: PodRecord | None = None
    planned: str = ""
    not_before: float = float("-inf")


class World:
    """All that one leadership knows and works with. Owned by the thread that decides.

    ``now``: gives monotonic seconds. ``evaluations``: evaluates selectors; None if
    ``cluster.fleet.kinds`` has an evaluator of its own.
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
        self.refused = Refused(now)
        self.line = WaitingLine(
            cluster, self.allocator, reporter, self.decisions, self.refused, now=now
        )
        self.refusals = Refusals(cluster, self.refused, now)
        self.labels = LabelPace()
        self.nominating = Nominating()
        most = options.moves_per_hour
        # The former leader may just have moved so many pods: the slots pass one after the other.
        self.rooms = RoomPlans([now() + times.HOUR * (n + 1) / most for n in range(most)])
        self.steered: dict[str, PodRecord] = {}
        """By UID, the pods that were sent to kube-scheduler and have no devices yet."""
        self.trusted: BoundedCache[str, int] = BoundedCache(_TEMPLATES)
        """By namespace, pods sent to kube-scheduler that it placed since it refused one."""
        self.missed: set[str] = set()
        """Nodes where the last pod that was sent to them was not placed."""
        self.evicted: BoundedCache[str, Evicted] = BoundedCache(_TEMPLATES)
        """By template."""
        self.gangs_rest_until = float("-inf")
        """Monotonic time before which no decision of a gang goes on, so that other work is done."""

    # -- what rules ask

    def examined(self, record: PodRecord) -> Problem | None:
        """The problem of the claims that a pod lacks; None if it lacks none or cannot be served.

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
        """A write that removes something of a claim, such as its allocation.

        ``then`` is called once the write has succeeded.
        """
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
        """Do what a rule says; returns True if the look at ``pod`` ends with that."""
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
        """Begin a write, whose allocations count from now on."""
        for claim, allocation in write.counts:
            self.cluster.begin_write(claim, allocation)
        self.in_flight.start(write.claims, write.job, write.done)

    def _wait(self, pod: Pod, wait: Wait) -> None:
        cluster = self.cluster
        if wait.why is not None:
            fleet, claims = cluster.fleet, cluster.claims
            if not fleet.is_all_schedulers or pod.gates:  # else kube-scheduler says why
                known = (claims[ref.key] for ref in wait.claims if ref.key in claims)
                self.reporter.waiting(pod, wait.why, known)
        ends = (wait.at, self.refusals.next_end(cluster.pod_index.template(pod)))
        at = min((end for end in ends if end is not None), default=float("inf"))
        self.agenda.wait(pod, wait.group, at=min(at, self.now() + times.WAITING_POD_AGAIN))

    def ask(self, pod: Pod, error: UnansweredError) -> None:
        """Have the selectors of ``pod`` evaluated, and look at it again once all are answered.

        Raises:
            UnansweredError: ``error``, if there are no ``evaluations``.
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
        """Take the outcome of a pod's write; after an ``error`` the pod rests.

        Raises:
            NotLeadingError: if ``error`` is one.
        """
        if error is not None:
            self.agenda.let_rest(key, is_claim=False)
        self.pod_looked_at(key, error)

    def pod_looked_at(self, key: ObjectKey, error: Exception | None) -> None:
        """Take the outcome of a look at a pod; after an ``error`` there is another after a pause.

        Raises:
            NotLeadingError: if ``error`` is one.
        """
        pod = self.cluster.pods.get(key)
        if error is not None:
            self._tell_error(key, error, pod)
        if error is None or pod is None:  # gone: nobody is left to fail
            self.agenda.changed.forget_failure(key)
        else:
            self.agenda.changed.retry(key, urgency(pod))

    def claim_answered(self, key: ObjectKey, error: Exception | None) -> None:
        """Take the outcome of a write to a claim; after an ``error`` the claim and its pods rest.

        Raises:
            NotLeadingError: if ``error`` is one.
        """
        if error is not None:
            self.agenda.let_rest(key, is_claim=True)
        pause = self.claim_looked_at(key, error)
        for pod in self.cluster.pod_index.of_claim(key) if error is not None else ():
            self.agenda.add_pod(pod.key, at=self.now() + pause)

    def claim_looked_at(self, key: ObjectKey, error: Exception | None) -> float:
        """Take the outcome of a look at a claim; returns the pause in seconds after an ``error``.

        Raises:
            NotLeadingError: if ``error`` is one.
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
